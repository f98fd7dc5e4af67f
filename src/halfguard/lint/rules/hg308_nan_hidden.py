"""A NaN loss or gradient is hidden."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import name_of, number
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("nan_to_num", "isnan", "isinf", "isfinite"),
    also_contains=("loss", "grad"),
    pattern=r"nan_to_num|where\(|\*=?\s*0(?:\.0?)?\b|\b0(?:\.0?)?\s*\*",
)
_LOSS = re.compile(r"(^|[._])(total_|ce_|kd_|train_)?loss$|\.grad(\.data)?$")


def check(file: PythonFile) -> Iterator[Match]:
    """Find the three ways to hide a NaN."""
    for call in file.calls("nan_to_num", "nan_to_num_"):
        if _is_loss(file.tensor_of(call)):
            yield match_at(call, "nan_to_num hides the NaN, but does not repair the gradient.")
    for call in file.calls("where"):
        if len(call.args) != 3 or not any(_is_loss(side) for side in call.args[1:]):
            continue
        if _is_nan_check(call.args[0]):
            yield match_at(call, "where() hides the NaN of this loss; the gradient is still NaN.")
    for node in file.nodes(ast.BinOp):
        sides = (node.left, node.right)
        by_zero = isinstance(node.op, ast.Mult) and any(number(s) == 0 for s in sides)
        if by_zero and any(_is_loss(s) for s in sides) and _is_under_nan_check(file, node):
            yield match_at(node, "NaN * 0 is NaN: the gradients are not repaired.")


def _is_loss(node: ast.AST | None) -> bool:
    return bool(_LOSS.search(name_of(node)))


def _is_under_nan_check(file: PythonFile, node: ast.AST) -> bool:
    tests = (p.test for p in file.ancestors(node) if isinstance(p, ast.If))
    return any(_is_nan_check(test) for test in tests)


def _is_nan_check(test: ast.AST) -> bool:
    return bool(re.search(r"isnan|isinf|isfinite", ast.unparse(test)))
