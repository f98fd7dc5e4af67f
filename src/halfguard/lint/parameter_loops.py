"""Loops over the parameters of a model, and which of them a statement in the loop reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from halfguard.lint.expressions import argument, boolean, called_name, name_of, receiver
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

PARAMETERS = {"parameters", "named_parameters"}


def trained_in(file: PythonFile, node: ast.AST | None) -> Iterator[str]:
    """Yield the names of the model, or of the list, whose trained parameters a loop runs over."""
    if isinstance(node, ast.Name):
        yield node.id
        value = file.assigned_value(node)
        yield from trained_in(file, value) if value is not node else ()
    elif isinstance(node, ast.Call) and called_name(node) in PARAMETERS:
        yield name_of(receiver(node))
    elif isinstance(node, ast.Call) and called_name(node) in {"list", "tuple"} and node.args:
        yield from trained_in(file, node.args[0])
    elif isinstance(node, ast.Call) and called_name(node) == "filter" and len(node.args) == 2:
        if isinstance(node.args[0], ast.Lambda) and _is_for_trained(file, node.args[0].body):
            yield from trained_in(file, node.args[1])
    elif isinstance(node, ast.ListComp | ast.GeneratorExp) and len(node.generators) == 1:
        is_whole = all(_is_for_trained(file, test) for test in node.generators[0].ifs)
        yield from trained_in(file, node.generators[0].iter) if is_whole else ()


def casts_each(file: PythonFile, loop: ast.For, assign: ast.Assign, name: str) -> bool:
    """Return whether a loop casts each parameter that it does not freeze."""
    child: ast.AST = assign
    for parent in file.ancestors(assign):
        if isinstance(parent, ast.If):
            other = parent.orelse if child in parent.body else parent.body
            always = child in parent.body and _is_for_trained(file, parent.test)
            if not always and not _freezes(other, name):
                return False
        if parent is loop:
            break
        child = parent
    leave = [n for n in ast.walk(loop) if isinstance(n, ast.Continue | ast.Break)]
    return all(_leaves_out_frozen(file, n, name) for n in leave if n.lineno < assign.lineno)


def _leaves_out_frozen(file: PythonFile, leave: ast.AST, name: str) -> bool:
    parent = file.parents.get(leave)
    if not isinstance(parent, ast.If) or leave not in parent.body:
        return False
    test = parent.test
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    is_frozen = negated and _is_for_trained(file, test.operand)  # type: ignore[attr-defined]
    return isinstance(leave, ast.Continue) and (is_frozen or _freezes(parent.body, name))


def _is_for_trained(file: PythonFile, test: ast.expr) -> bool:
    """Return whether every trained half parameter passes: ``p.requires_grad and p.dtype == torch.half``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(_is_for_trained(file, one) for one in test.values)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.Is):
        is_half = file.dtype_precision(test.comparators[0]) is Precision.HALF
        return is_half and isinstance(test.left, ast.Attribute) and test.left.attr == "dtype"
    return isinstance(test, ast.Attribute) and test.attr == "requires_grad"


def _freezes(body: Iterable[ast.stmt], name: str) -> bool:
    """Return whether statements set ``p.requires_grad = False``."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if f"{name}.requires_grad" in map(name_of, targets):
            return boolean(node.value) is False  # type: ignore[attr-defined]
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and name_of(call.func) == f"{name}.requires_grad_":
            return boolean(argument(call, 0, "requires_grad")) is False
    return False


def names_in(target: ast.expr) -> set[str]:
    """Return the variables that a loop assigns."""
    return {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
