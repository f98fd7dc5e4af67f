"""Everything that a rule can ask about one Python file, and the edits that it can make there.

No edit is made (None) where it would break the layout of the file: two statements on one line, or a comment
inside the replaced text.
"""

from __future__ import annotations

import ast
import re
from functools import cached_property

from halfguard.lint.autocast import AutocastRegions
from halfguard.lint.expressions import name_parts
from halfguard.lint.match import Edit, Fix, FixKind, Span
from halfguard.lint.precision import Precision, PrecisionReader, precision_of_dtype
from halfguard.lint.project import UNKNOWN, Project
from halfguard.lint.roles import Roles
from halfguard.lint.source import Source
from halfguard.lint.steps import Event, EventReader, Step, find_steps
from halfguard.lint.syntax_tree import SyntaxTree

# Code that runs beside the model, in float32 and outside of autocast: data, metrics, drawing, tests.
_BESIDE = re.compile(
    r"(^|[/_.])(data(sets?|loaders?|_?utils)?|transforms?|preprocess(ing)?|metrics?|eval(uat(e|ion|or))?|"
    r"tests?|visuali[sz](e|ation|er)|plot(ting)?|draw|demo|export|onnx|tools?|deploy(ment)?|convert\w*|"
    r"serve|benchmarks?|predictors?|infer(ence|er)?|webui|gradio|app)([/_.]|$)"
)
# Examples and foreign code: how the rest of the project trains proves nothing about them.
_ELSEWHERE = re.compile(r"(^|/)(examples?|legacy|third_?party|vendor(ed)?|research_projects)/")
_INFERENCE = re.compile(
    r"^_?(generate|sample|infer(ence)?|predict|eval(uate)?|test|valid(ate|ation)?|demo|export|decode|"
    r"p_sample|ddim_sample|forward_test|simple_test|post_?process|nms)(_|$)"
)
_NO_GRADIENT = {"no_grad", "inference_mode"}
_INITIALIZES = {"init", "init is True", "init == True", "not self.initialized"}


class PythonFile(SyntaxTree):
    """A syntax tree with variable roles, autocast regions, training steps and precisions."""

    def __init__(
        self, source: Source, root: ast.Module, path: str = "", project: Project = UNKNOWN
    ) -> None:
        super().__init__(source, root)
        self.path = path
        self.project = project

    @cached_property
    def roles(self) -> Roles:
        """Names of the scalers, optimizers and schedulers."""
        return Roles(self)

    @cached_property
    def autocast(self) -> AutocastRegions:
        """Regions in which autocast is on."""
        return AutocastRegions(self, self._is_autocast_assumed)

    def _is_autocast_assumed(self, node: ast.AST) -> bool:
        """Return whether the project trains with float16 autocast and a node is part of its model."""
        return self.project.mixed and self.is_model_code(node)

    @cached_property
    def is_beside_the_model(self) -> bool:
        """True if the path is that of data, metrics, tools or tests."""
        return self.project.known and bool(_BESIDE.search(self.path.lower()))

    def is_model_code(self, node: ast.AST) -> bool:
        """Return whether a node may run in a training step: in a module, or in a plain function."""
        if self.is_beside_the_model or self.is_inference(node):
            return False
        if self.project.known and _ELSEWHERE.search(self.path.lower()):
            return False
        owner = self.class_of(node)
        return owner is None or self.roles.is_in_nn_module(node)

    def is_inference(self, node: ast.AST) -> bool:
        """Return whether no gradient is computed at a node."""
        for parent in self.ancestors(node):
            if isinstance(parent, ast.With | ast.AsyncWith):
                if any(_stops_gradients(item.context_expr) for item in parent.items):
                    return True
            elif isinstance(parent, ast.If):
                if ast.unparse(parent.test) in _INITIALIZES:
                    return True  # weights are initialized from data, once
            elif isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
                names = _INFERENCE.search(parent.name)
                if names or any(_stops_gradients(d) for d in parent.decorator_list):
                    return True
        return False

    @cached_property
    def steps(self) -> list[Step]:
        return find_steps(EventReader(self, self.roles))

    def is_assigned_between(self, earlier: Event, later: Event) -> bool:
        """Return whether the scaler or the optimizer of an event may be another one at a later event."""
        functions = {self.function_of(earlier.node), self.function_of(later.node)}
        begin, end = earlier.node.lineno, later.node.lineno
        for name in (later.owner, later.optimizer):
            assigned = [a for a in self.assignments.get(name, ()) if a.function in functions]
            if len(functions) > 1 and len(assigned) > 1:
                return True  # in which order is not known
            if len(functions) == 1 and any(begin < a.line <= end for a in assigned):
                return True
        return False

    @cached_property
    def _precisions(self) -> PrecisionReader:
        return PrecisionReader(self, self.autocast)

    def precision(self, node: ast.AST) -> Precision:
        return self._precisions.read(node)

    @cached_property
    def _proven_precisions(self) -> PrecisionReader:
        return PrecisionReader(self, AutocastRegions(self, lambda _node: False))

    def is_proven_half(self, node: ast.AST, *, trained: bool = True) -> bool:
        """Return whether this file alone shows that a value is float16; ``trained``: where gradients are."""
        found = self._proven_precisions.read(node)
        return found is Precision.HALF and not (trained and self.is_inference(node))

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


def _stops_gradients(node: ast.expr) -> bool:
    """Return whether an expression is ``torch.no_grad()`` or ``torch.inference_mode()``."""
    parts = name_parts(node.func if isinstance(node, ast.Call) else node)
    return bool(parts) and parts[-1] in _NO_GRADIENT


def make_fix(kind: FixKind, *edits: Edit | None, imports: tuple[str, ...] = ()) -> Fix | None:
    """Return a fix, or None if one of its edits was refused."""
    possible = tuple(edit for edit in edits if edit is not None)
    return Fix(kind, possible, imports) if len(possible) == len(edits) else None


def insert_before(file: PythonFile, statement: ast.stmt, text: str) -> Edit | None:
    """Insert a statement on the line above, with the same indentation."""
    if not _has_own_lines(file, statement):
        return None
    indent = file.source.indent(statement.lineno)
    return Edit(Span.before(statement), f"{text}{file.source.newline}{indent}")


def insert_after(file: PythonFile, statement: ast.stmt, text: str) -> Edit | None:
    """Insert a statement on the line below, with the same indentation."""
    if not _has_own_lines(file, statement):
        return None
    last = statement.end_lineno or statement.lineno
    indent, newline = file.source.indent(statement.lineno), file.source.newline
    end = len(file.source.lines[last - 1].rstrip(b"\r\n"))
    return Edit(Span(last, end, last, end), f"{newline}{indent}{text}")


def remove(file: PythonFile, statement: ast.stmt) -> Edit | None:
    """Remove a statement and its lines, unless it is the only statement of its block."""
    parent = file.parents.get(statement)
    blocks = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
    is_only = any(isinstance(b, list) and b == [statement] for b in blocks)
    last = statement.end_lineno or statement.lineno
    if is_only or not _has_own_lines(file, statement) or last >= len(file.source.lines):
        return None
    return Edit(Span(statement.lineno, 0, last + 1, 0), "")


def replace(file: PythonFile, node: ast.expr | ast.stmt, text: str) -> Edit | None:
    """Replace an expression, unless a comment inside it would be lost."""
    if "#" in file.text(node) and node.lineno != node.end_lineno:
        return None
    return Edit(Span.of(node), text)


def _has_own_lines(file: PythonFile, statement: ast.stmt) -> bool:
    """Return whether no other statement shares a line with this one; a comment may."""
    before = file.source.lines[statement.lineno - 1][: statement.col_offset]
    last = statement.end_lineno or statement.lineno
    after = file.source.lines[last - 1][statement.end_col_offset or 0 :].strip()
    return not before.strip() and (not after or after.startswith(b"#"))


def is_name_or_attribute(node: ast.AST | None) -> bool:
    """Return whether an expression is cheap to repeat in a fix: only names and attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
