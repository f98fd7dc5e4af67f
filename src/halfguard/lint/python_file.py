"""Everything that a rule can ask about one Python file, and the fixes that it can make there."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cached_property

from halfguard.lint.autocast import AutocastRegions
from halfguard.lint.conditions import is_for_full_precision
from halfguard.lint.expressions import (
    name_parts,
)  # fmt: skip
from halfguard.lint.match import Fix, FixKind
from halfguard.lint.precision import Precision, PrecisionReader, precision_of_dtype
from halfguard.lint.project import UNKNOWN, Project
from halfguard.lint.roles import Roles
from halfguard.lint.source import Source
from halfguard.lint.steps import Event, EventReader, Step, find_steps
from halfguard.lint.syntax_tree import SyntaxTree
from halfguard.repairs.source_file import SourceFile

# Code that runs beside the model, in float32 and outside of autocast: data, metrics, drawing, tests.
_BESIDE = re.compile(
    r"(^|[/_.])(data(sets?|loaders?|_?utils)?|transforms?|preprocess(ing)?|metrics?|eval(uat(e|ion|or))?|"
    r"tests?|visuali[sz](e|ation|er)|plot(ting)?|draw|demo|export|onnx|tools?|deploy(ment)?|convert\w*|"
    r"serve|benchmarks?|predictors?|infer(ence|er)?|webui|gradio|app|examples?|legacy|research_projects)([/_.]|$)"
)
_INFERENCE = re.compile(
    r"^_?(generate|sample|infer(ence)?|predict|eval(uate)?|test|valid(ate|ation)?|demo|export|decode|"
    r"p_sample|ddim_sample|forward_test|simple_test|post_?process|nms)(_|$)"
)
_TRAINS = re.compile(r"(?<![a-z])train(ing)?(?![a-z])")
_EVALUATES = re.compile(
    r"(?<![a-z])(eval|test|infer(ence)?|predict|demo|export|val)(?![a-z])", re.I
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
        """Regions in which autocast is on, here or in a file that trains in float16 and calls this one."""
        return AutocastRegions(self, self._is_called_in_half)

    def _is_called_in_half(self, node: ast.AST) -> bool:
        """Return whether a file that trains in float16 calls the module or function around a node."""
        if self.project.lone or not self.project.may_call_in_half(self.path):
            return False
        if _BESIDE.search(self.path.lower()) or self.is_inference(node):
            return False
        return self.class_of(node) is None or self.roles.is_in_nn_module(node)

    def is_inference(self, node: ast.AST) -> bool:
        """Return whether no gradient is computed at a node."""
        child = node
        for parent in self.ancestors(node):
            if isinstance(parent, ast.With | ast.AsyncWith):
                if any(_stops_gradients(item.context_expr) for item in parent.items):
                    return True
            elif isinstance(parent, ast.If):
                if child is not parent.test and _is_not_trained(parent, child in parent.body):
                    return True
            elif isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
                names = _INFERENCE.search(parent.name)
                if names or any(_stops_gradients(d) for d in parent.decorator_list):
                    return True
            child = parent
        return False

    @cached_property
    def steps(self) -> list[Step]:
        return find_steps(EventReader(self, self.roles))

    def is_assigned_between(self, earlier: Event, later: Event) -> bool:
        """Return whether the scaler or the optimizer of an event may be another one at a later event."""
        functions = {self.function_of(earlier.node), self.function_of(later.node)}
        begin, end = earlier.node.lineno, later.node.lineno
        for name in (later.owner_name, later.optimizer_name):
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

    def is_half(self, node: ast.AST) -> bool:
        """Return whether a value is shown to be float16, where gradients are computed."""
        is_half = self.precision(node) is Precision.HALF and not is_for_full_precision(self, node)
        return is_half and not self.is_inference(node)

    def may_be_half(self, node: ast.AST) -> bool:
        """Return whether a value is float16, or may be, in a file of which nothing else is known."""
        if not self.project.lone or self.precision(node) is not Precision.MAYBE:
            return self.is_half(node)
        region = self.autocast.around(node)
        if region is not None and region.enabled is False:
            return False  # its author has thought about precision
        return not is_for_full_precision(self, node)

    def dtype_precision(self, node: ast.AST | None) -> Precision | None:
        """Return the precision that a dtype argument asks for, or None if it is not a known dtype."""
        return precision_of_dtype(self, node)

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return the source of a node."""
        return self._source_file.source(node)

    def fix(self, kind: FixKind, edit: Callable[..., object], *given: object) -> Fix | None:
        """Return the edits that a repair makes; None if it makes none, or if one is not certain."""
        file = self._source_file
        file.edits, file.refused = {}, False
        edit(file, *given)
        edits = tuple((*at, new.decode()) for at, new in file.edits.items())
        return Fix(kind, edits) if edits and not file.refused else None

    @cached_property
    def _source_file(self) -> SourceFile:
        return SourceFile(self.path, self.source.text, self.root)


def _is_not_trained(branch: ast.If, in_body: bool) -> bool:
    """Return whether a branch of a test is for inference, or initializes weights from data, once."""
    text = ast.unparse(branch.test)
    if text in _INITIALIZES:
        return True
    negated = text.startswith("not ")
    if _TRAINS.search(text):
        return in_body == negated
    return in_body and not negated and bool(_EVALUATES.search(text))


def _stops_gradients(node: ast.expr) -> bool:
    """Return whether an expression is ``torch.no_grad()`` or ``torch.inference_mode()``."""
    parts = name_parts(node.func if isinstance(node, ast.Call) else node)
    return bool(parts) and parts[-1] in _NO_GRADIENT


def is_name_or_attribute(node: ast.AST | None) -> bool:
    """Return whether an expression is cheap to repeat in a fix: only names and attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
