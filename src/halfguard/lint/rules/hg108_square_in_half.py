"""A hand-written norm squares values that may be float16."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, number
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import may_be_half
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("sqrt(",),
    also_contains=("mean(", "sum("),
    pattern=r"sqrt\((?<!math\.sqrt\()(?<!np\.sqrt\()",
    needs_half=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find roots of means of squares."""
    for call in file.calls("rsqrt", "sqrt"):
        inner = file.tensor_of(call)
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
            inner = inner.left
        square = _square(file, file.assigned_value(inner))
        if square is not None and file.roles.is_in_nn_module(call) and _overflows(file, square):
            yield match_at(call, "Values of 256 and above overflow float16 when squared.")


def _overflows(file: PythonFile, square: ast.expr) -> bool:
    """Return whether a square is computed in float16; autocast runs ``pow`` in float32, but not ``x * x``."""
    base = _base(file, square)
    is_product = isinstance(square, ast.BinOp) and isinstance(square.op, ast.Mult)
    if base is None or (file.autocast.is_on(square) and not is_product):
        return False
    return may_be_half(file, base)


def _square(file: PythonFile, node: ast.AST | None) -> ast.expr | None:
    """Return the square in ``x.pow(2).mean(...)``, ``torch.mean(x * x)`` and similar expressions."""
    if not isinstance(node, ast.Call) or called_name(node) not in {"mean", "sum"}:
        return None
    inner = file.assigned_value(file.tensor_of(node))
    return inner if isinstance(inner, ast.expr) and _base(file, inner) is not None else None


def _base(file: PythonFile, square: ast.expr) -> ast.expr | None:
    """Return ``x`` of ``x ** 2``, ``x * x``, ``x.pow(2)`` and ``torch.square(x)``."""
    if isinstance(square, ast.BinOp) and isinstance(square.op, ast.Pow):
        return square.left if number(square.right) == 2 else None
    if isinstance(square, ast.BinOp) and isinstance(square.op, ast.Mult):
        return square.left if ast.dump(square.left) == ast.dump(square.right) else None
    if isinstance(square, ast.Call):
        power = square.args[-1] if square.args else None
        if called_name(square) == "square" or (called_name(square) == "pow" and number(power) == 2):
            return file.tensor_of(square)
    return None
