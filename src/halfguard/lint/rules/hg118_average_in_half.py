"""A moving average of weights is kept in float16, and its updates are rounded away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, called_name, name_of, number, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("lerp_(", "add_(", "1 - ", "1.0 - "),
    pattern=r"half\(|float16",
    needs_half=True,
)
_DECAY = re.compile(r"(?<!weight_)(?<!lr_)decay|(^|[._])ema(_|$)", re.IGNORECASE)
_SLOW = 0.99
_MESSAGE = "This average is float16: steps of 1 - decay are rounded away."


def check(file: PythonFile) -> Iterator[Match]:
    """Find averages that are float16."""
    for call in file.calls("lerp_", "add_"):
        owner = receiver(call)
        if owner is None or not _moves_slowly(file, call):
            continue
        if file.is_proven_half(owner, trained=False):
            yield match_at(call, _MESSAGE)
    for node in file.nodes(ast.Assign):
        average = node.targets[0]
        if _is_average_of(file, node.value, average) and all(
            file.is_proven_half(part, trained=False) for part in (average, *_factors(node.value))
        ):
            yield match_at(node, _MESSAGE)


def _moves_slowly(file: PythonFile, call: ast.Call) -> bool:
    """Return whether an argument contains ``1 - decay``, or is a small constant weight of ``lerp_``."""
    weight = number(argument(call, 1, "weight")) if called_name(call) == "lerp_" else None
    if weight is not None:
        return 0 < weight <= 1 - _SLOW
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    return any(_is_slow(file, part) for value in given for part in ast.walk(value))


def _is_slow(file: PythonFile, node: ast.AST) -> bool:
    """Return whether an expression is ``1 - decay`` with a decay near 1."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    if number(node.left) != 1:
        return False
    decay = file.constant(node.right)
    if decay is not None:
        return _SLOW <= decay < 1
    name = node.right.func if isinstance(node.right, ast.Call) else node.right
    return bool(_DECAY.search(name_of(name)))


def _is_average_of(file: PythonFile, value: ast.expr, average: ast.expr) -> bool:
    """Return whether a value is ``decay * average + (1 - decay) * weight``."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    products = [p for p in (value.left, value.right) if _is_product(p)]
    parts = [part for p in products if isinstance(p, ast.BinOp) for part in (p.left, p.right)]
    if len(products) != 2 or not any(_is_slow(file, part) for part in parts):
        return False
    return ast.unparse(average) in {ast.unparse(part) for part in parts}


def _is_product(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def _factors(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the factor beside ``1 - decay``: the weight that the average moves to."""
    for node in (value.left, value.right) if isinstance(value, ast.BinOp) else ():
        if isinstance(node, ast.BinOp):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub):
                    yield other
