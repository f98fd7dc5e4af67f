"""Find sums with a constant that is zero in float16, where the sum keeps a logarithm or a division finite."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from halfguard.lint.expressions import argument, receiver
from halfguard.lint.numeric_checks import assigned_sum, underflows_half
from halfguard.lint.python_file import PythonFile

_FUNCTIONS = ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal")


@dataclass(frozen=True)
class SmallTerm:
    """A sum ``rest + eps``; ``certain`` if it is the operand of a function that only tensors have."""

    node: ast.BinOp
    eps: ast.expr
    rest: ast.expr
    certain: bool


def find_small_terms(file: PythonFile) -> Iterator[SmallTerm]:
    """Yield sums in a logarithm, a root or a divisor."""
    for call in file.calls(*_FUNCTIONS):
        inner = argument(call, 0, "input") if file.is_torch_call(call) else receiver(call)
        # Only tensors have these methods, and they take no arguments.
        if inner is not None and (file.is_torch_call(call) or not call.args):
            yield from _terms(file, assigned_sum(file, inner), certain=True)
    for node in file.nodes(ast.BinOp):
        if isinstance(node.op, ast.Div):
            yield from _terms(file, assigned_sum(file, node.right), certain=False)


def _terms(file: PythonFile, node: ast.AST | None, *, certain: bool) -> Iterator[SmallTerm]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return
    for eps, rest in ((node.right, node.left), (node.left, node.right)):
        if underflows_half(file.constant(eps)):
            yield SmallTerm(node, eps, rest, certain)
