"""Everything that a rule can ask about one Python file; each answer is computed on first use."""

from __future__ import annotations

import ast
from functools import cached_property

from halfguard.lint.autocast import AutocastRegions
from halfguard.lint.event_reader import EventReader
from halfguard.lint.match import Span
from halfguard.lint.precision import Precision, PrecisionReader, precision_of_dtype
from halfguard.lint.roles import Roles
from halfguard.lint.steps import Step, find_steps
from halfguard.lint.syntax_tree import SyntaxTree


class PythonFile(SyntaxTree):
    """A syntax tree with variable roles, autocast regions, training steps and precisions."""

    @cached_property
    def roles(self) -> Roles:
        """Names of the scalers, optimizers and schedulers."""
        return Roles(self)

    @cached_property
    def autocast(self) -> AutocastRegions:
        """Regions in which autocast is on."""
        return AutocastRegions(self)

    @cached_property
    def steps(self) -> list[Step]:
        return find_steps(EventReader(self, self.roles))

    @cached_property
    def _precisions(self) -> PrecisionReader:
        return PrecisionReader(self, self.autocast)

    def precision(self, node: ast.AST) -> Precision:
        return self._precisions.read(node)

    def dtype_precision(self, node: ast.AST | None) -> Precision | None:
        """Return the precision that a dtype argument asks for, or None if it is not a known dtype."""
        return precision_of_dtype(self, node)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return the source of a node."""
        return self.source.text_at(Span.of(node))

    @cached_property
    def mentions_fp16(self) -> bool:
        """True if the file mentions autocast, a gradient scaler or float16."""
        text = self.source.text
        return any(
            word in text for word in ("autocast", "GradScaler", "float16", "fp16", ".half()")
        )
