"""Everything a rule may ask about one Python file, each answer worked out when it is first wanted."""

from __future__ import annotations

import ast
from functools import cached_property

from halfguard.lint.autocast import Regions
from halfguard.lint.events import Events
from halfguard.lint.match import Span
from halfguard.lint.module import Module
from halfguard.lint.precision import Precision, dtype_of, precision
from halfguard.lint.roles import Roles
from halfguard.lint.steps import Step, find_steps


class Model(Module):
    """The index of a file with its meaning: roles, autocast regions, training steps, precision."""

    @cached_property
    def roles(self) -> Roles:
        """Which names are scalers, optimizers, schedulers."""
        return Roles(self)

    @cached_property
    def regions(self) -> Regions:
        """Where autocast is on."""
        return Regions(self)

    @cached_property
    def steps(self) -> list[Step]:
        """The training steps."""
        return find_steps(Events(self, self.roles))

    def precision(self, node: ast.AST) -> Precision:
        """Whether a value may be half."""
        return precision(self, self.regions, node)

    def dtype(self, node: ast.AST | None) -> Precision | None:
        """What a dtype argument says."""
        return dtype_of(self, node)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """The source of a node."""
        return self.source.segment(Span.of(node))

    @cached_property
    def uses_half(self) -> bool:
        """Whether this file itself speaks of 16-bit training."""
        text = self.source.text
        return any(
            word in text for word in ("autocast", "GradScaler", "float16", "fp16", ".half()")
        )

    def stands_alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines to itself, so that lines can be put around it."""
        before = self.source.lines[statement.lineno - 1][: statement.col_offset]
        last = statement.end_lineno or statement.lineno
        after = self.source.lines[last - 1][statement.end_col_offset or 0 :].strip()
        return not before.strip() and (not after or after.startswith(b"#"))
