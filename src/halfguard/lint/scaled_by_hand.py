"""Losses that are multiplied by a scale, and gradients that are divided by it, without a scaler."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from halfguard.lint.expressions import argument, called_name, name_of, number, receiver
from halfguard.lint.python_file import PythonFile
from halfguard.lint.steps import Step
from halfguard.lint.syntax_tree import parameter_names

_IN_PLACE = {"div_": ast.Div, "divide_": ast.Div, "mul_": ast.Mult}
_FOREACH = {"_foreach_div_": ast.Div, "_foreach_mul_": ast.Mult}
_DEPTH, _MOST = 3, 20  # functions that call each other, and calls of each that are looked at


def scales_by_hand(file: PythonFile, step: Step) -> bool:
    """Return whether every loss of a step is multiplied by a factor that gradients are divided by."""
    calls = [e.node for e in step.find("backward") if isinstance(e.node, ast.Call)]
    losses = [(receiver(call), file.assigned_value(receiver(call))) for call in calls]
    scales = [{f for node in both for f in _multiplied_by(file, node)} for both in losses]
    if not scales or not all(scales):
        return False
    divisors = set(_gradient_divisors(file))
    return all(found & divisors for found in scales)


def _multiplied_by(file: PythonFile, node: ast.AST | None) -> set[str | float]:
    """Return the factors of a product; a number must be above 1 to be a loss scale."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Call) and called_name(node) in {"mul", "multiply"}:
        parts = [*node.args]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        parts = [node.left, node.right]
    found = {factor for part in parts for factor in _factors(file, part)}
    return {factor for factor in found if isinstance(factor, str) or factor > 1}


def _gradient_divisors(file: PythonFile) -> Iterator[str | float]:
    """Yield what the file divides ``p.grad`` by; a product with ``1 / scale`` divides as well."""
    for operation, by in _changes_of_gradients(file):
        if operation is ast.Div:
            yield from _factors(file, by)
            continue
        inverse = file.assigned_value(by)
        if isinstance(inverse, ast.BinOp) and isinstance(inverse.op, ast.Div):
            yield from _factors(file, inverse.right) if number(inverse.left) == 1 else ()
        value = file.constant(by)
        if value:
            yield 1 / value


def _changes_of_gradients(file: PythonFile) -> Iterator[tuple[type[ast.operator], ast.expr]]:
    for call in file.calls(*_IN_PLACE):
        by = argument(call, 0, "other")
        if by is not None and name_of(receiver(call)).endswith(".grad"):
            yield _IN_PLACE[called_name(call)], by
    for call in file.calls(*_FOREACH):
        if (by := argument(call, 1, "scalar")) is not None:
            yield _FOREACH[called_name(call)], by
    for changed in file.nodes(ast.AugAssign):
        if isinstance(changed.target, ast.Attribute) and changed.target.attr == "grad":
            yield type(changed.op), changed.value
    for assign in file.nodes(ast.Assign):
        targets = [t for t in assign.targets if isinstance(t, ast.Attribute) and t.attr == "grad"]
        if targets and isinstance(assign.value, ast.BinOp):
            yield type(assign.value.op), assign.value.right


def _factors(file: PythonFile, node: ast.expr, depth: int = 0) -> Iterator[str | float]:
    """Yield the value or the name of a factor, also those that callers give to a parameter."""
    value = file.constant(node)
    if value is not None:
        yield value
    name = name_of(node)
    if name:
        yield name
    function = file.function_of(node)
    names = [n for n in parameter_names(function) if n != "self"] if function else []
    if function is None or name not in names or depth == _DEPTH:
        return
    for call in islice(file.calls(function.name), _MOST):
        given = argument(call, names.index(name), name)
        if given is not None:
            yield from _factors(file, given, depth + 1)
