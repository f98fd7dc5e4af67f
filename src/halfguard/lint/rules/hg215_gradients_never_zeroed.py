"""Gradients are never set to zero, and pile up until they overflow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, name_of, number, string
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.steps import Step

META = Meta(
    contains=("caler",),
    also_contains=(".backward(",),
    pattern=r"optim",
)
_ZEROES = re.compile(r"zero_?grad|reset_grad|clear_grad|^_foreach_zero_$")
_IN_PLACE = {"zero_", "detach_", "data", "fill_"}  # of a gradient
# Functions that read an optimizer, or put it into a container of this file.
_READS = {
    "append",
    "getattr",
    "hasattr",
    "id",
    "isinstance",
    "len",
    "list",
    "print",
    "tuple",
    "type",
    "zip",
}
_SCHEDULES = re.compile(r"sched|warmup|(^|_)lr(_|$)", re.IGNORECASE)
_PLAIN_BASES = {"object", "ABC", "Module", "Protocol", "Generic"}


def check(file: PythonFile) -> Iterator[Match]:
    """Find loops that add to the same gradients for ever."""
    if not _constructs_optimizer(file) or _zeroes(file) or _hands_over_optimizer(file):
        return
    for step in file.steps:
        scaled = step.find("scaled_backward")
        if step.loop is None or not scaled or not step.has("scaler_step"):
            continue
        if not _is_made_in_loop(file, step) and not _inherits(file, step.loop):
            yield match_at(
                scaled[0].node, "These gradients are added to those of all batches before."
            )


def _constructs_optimizer(file: PythonFile) -> bool:
    names = (file.full_name(call.func) for call in file.nodes(ast.Call))
    return any(n.startswith("torch.optim.") and "lr_scheduler" not in n for n in names)


def _zeroes(file: PythonFile) -> bool:
    """Return whether anything in the file sets gradients to zero; comments do not count."""
    names = (node.id for node in file.nodes(ast.Name))
    keywords = (node.arg or "" for node in file.nodes(ast.keyword))
    looked_up = (string(a) or "" for call in file.calls("getattr", "setattr") for a in call.args)
    if any(_ZEROES.search(name) for some in (names, keywords) for name in some):
        return True
    if any(name == "grad" or _ZEROES.search(name) for name in looked_up):
        return True
    return any(
        _ZEROES.search(node.attr) or _resets(file, node) for node in file.nodes(ast.Attribute)
    )


def _resets(file: PythonFile, node: ast.Attribute) -> bool:
    """Return whether an attribute is ``.grad`` that is assigned, deleted or changed in place."""
    if node.attr in _IN_PLACE:
        return isinstance(node.value, ast.Attribute) and node.value.attr == "grad"
    if node.attr != "grad" or isinstance(node.ctx, ast.Load):
        return False
    parent = file.parents.get(node)
    return not isinstance(parent, ast.AugAssign) or number(parent.value) == 0


def _hands_over_optimizer(file: PythonFile) -> bool:
    """Return whether an optimizer is passed to a function of another file, which may zero gradients."""
    own = {f.name for f in file.functions} | {c.name for c in file.nodes(ast.ClassDef)}
    for call in file.nodes(ast.Call):
        name = called_name(call)
        if name in own | _READS or _SCHEDULES.search(name) or file.is_torch_call(call):
            continue
        if isinstance(call.func, ast.Attribute) and file.roles.is_scaler(call.func.value):
            continue
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        parts = [part for a in given for part in _parts(a)]
        if any(file.roles.is_optimizer(part) for part in parts):
            return True
    return False


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.List | ast.Tuple) else [node]


def _is_made_in_loop(file: PythonFile, step: Step) -> bool:
    """Return whether the optimizer is new in every iteration, also in a function that the loop calls."""
    around = file.function_of(step.loop) if step.loop else None
    for event in step.find("scaler_step"):
        inner = file.function_of(event.node)
        for assigned in file.assignments.get(event.optimizer, ()):
            value = assigned.value or assigned.container
            if not isinstance(value, ast.Call):
                continue
            is_called = inner is not None and inner is not around
            is_inside = any(node is step.loop for node in file.ancestors(value))
            if is_inside or (is_called and assigned.function is inner):
                return True
    return False


def _inherits(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a node is in a class whose methods may be those of a class of another file."""
    classes = {c.name: c for c in file.nodes(ast.ClassDef)}
    owner = file.class_of(node)
    waiting = [owner] if owner else []
    seen: set[str] = set()
    while waiting:
        one = waiting.pop()
        seen.add(one.name)
        for base in one.bases:
            name = name_of(base.value if isinstance(base, ast.Subscript) else base)
            if name in classes:
                waiting += [classes[name]] if name not in seen else []
            elif name.rpartition(".")[2] not in _PLAIN_BASES:
                return True
    return False
