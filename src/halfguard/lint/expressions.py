"""Helpers for one expression: its name, its arguments, its literal value."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

_MAX_DEPTH = 50  # deeper expressions are generated code


def name_parts(node: ast.AST | None) -> tuple[str, ...]:
    """Return the parts of ``a.b.c``; empty if it holds anything but names and attributes."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _MAX_DEPTH:
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ()
    return (node.id, *reversed(parts))


def name_of(node: ast.AST | None) -> str:
    """Return the dotted name of a variable, such as ``self.scaler``; empty for other expressions."""
    return ".".join(name_parts(node))


def called_name(call: ast.Call) -> str:
    """Return the last part of the called name: ``step`` in ``self.scaler.step(...)``."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def receiver(call: ast.Call) -> ast.expr | None:
    """Return the object that a method is called on: ``scaler`` in ``scaler.step()``."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return an argument by position or keyword; None if it is missing or hidden by ``*args``.

    A position of -1 means that the argument is looked up by keyword only.
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position < 0 or position >= len(call.args):
        return None
    if any(isinstance(a, ast.Starred) for a in call.args[: position + 1]):
        return None
    return call.args[position]


def has_keyword(call: ast.Call, *names: str) -> bool:
    """Return whether any of these keywords is given, or may be given through ``**kwargs``."""
    return any(keyword.arg is None or keyword.arg in names for keyword in call.keywords)


def boolean(node: ast.AST | None) -> bool | None:
    """Return the value of a boolean literal, or None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    return None


def string(node: ast.AST | None) -> str | None:
    """Return the value of a string literal, or None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}


def number(node: ast.AST | None, depth: int = 0) -> float | None:
    """Return the value of a number or of arithmetic on numbers, or None."""
    if depth > _MAX_DEPTH or node is None:
        return None
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = number(node.operand, depth + 1)
        negative = isinstance(node.op, ast.USub)
        return -inner if negative and inner is not None else inner
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = number(node.left, depth + 1), number(node.right, depth + 1)
        if left is None or right is None:
            return None
        try:
            return _OPERATORS[type(node.op)](left, right)
        except (ArithmeticError, ValueError):
            return None
    return None
