"""Small questions about one expression: its dotted name, its key, its number."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

_LIMIT = 50  # longer chains are not code that a person wrote


def chain(node: ast.AST) -> tuple[str, ...]:
    """``a.b.c`` as its parts; empty for anything that is not names and attributes."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _LIMIT:
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ()
    return (node.id, *reversed(parts))


def key(node: ast.AST) -> str:
    """The text by which a variable is known: ``scaler``, ``self.scaler``; empty for other things."""
    return ".".join(chain(node))


def last_name(call: ast.Call) -> str:
    """The last part of what is called: ``step`` in ``self.scaler.step(...)``."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def receiver(call: ast.Call) -> ast.expr | None:
    """What a method is called on."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument by position or keyword; None as well where ``*args`` hides it."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position < 0 or position >= len(call.args):
        return None
    if any(isinstance(a, ast.Starred) for a in call.args[: position + 1]):
        return None
    return call.args[position]


def has_keyword(call: ast.Call, *names: str) -> bool:
    """Whether any of these keywords is given, or might be through ``**kwargs``."""
    return any(keyword.arg is None or keyword.arg in names for keyword in call.keywords)


def boolean(node: ast.AST | None) -> bool | None:
    """The truth of a literal; None where it is not one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    return None


def string(node: ast.AST | None) -> str | None:
    """The text of a literal; None where it is not one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}


def number(node: ast.AST | None, depth: int = 0) -> float | None:
    """The value of a literal or of arithmetic on literals; None where it cannot be told."""
    if depth > _LIMIT or node is None:
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
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = number(node.left, depth + 1), number(node.right, depth + 1)
        if left is None or right is None:
            return None
        try:
            return _BINARY[type(node.op)](left, right)
        except (ArithmeticError, ValueError):
            return None
    return None
