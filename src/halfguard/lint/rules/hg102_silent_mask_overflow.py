"""A constant outside the range of float16 becomes infinite without an error.

## What it does
Finds `torch.where`, item assignment and arithmetic with a constant such as `-1e9` on float16 values.

## Why is this bad?
Unlike `masked_fill`, these operations do not raise: the masked values become infinite. A row that is fully
masked is then NaN after softmax, and so are its gradients. `(1 - mask) * -1e9` with a Python number is -inf
where the mask is 0 and 0 where it is 1, because torch multiplies in float32 and rounds the product. With a
float16 tensor of the same constant it is NaN where the mask is 1: 0 * -inf is NaN.

## Example
```py
import torch

def attend(scores, mask):
    with torch.autocast("cuda", dtype=torch.float16):
        return torch.where(mask, scores @ scores.mT, -1e9).softmax(-1)
```

## Use instead
```py
import torch

def attend(scores, mask):
    with torch.autocast("cuda", dtype=torch.float16):
        products = scores @ scores.mT
        return products.masked_fill(~mask, torch.finfo(products.dtype).min).softmax(-1)
```

## References
huggingface/transformers#17306, pytorch#131863.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, called_name, name_of
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import LARGE_CONSTANTS, is_certainly_half, overflows_half
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile
from halfguard.lint.syntax_tree import parameter_names

META = Meta(
    code="HG102",
    name="silent-mask-overflow",
    cure="Use masked_fill with torch.finfo(x.dtype).min.",
    contains=("float16", "half", "autocast"),
    pattern=LARGE_CONSTANTS,
    needs_half=True,
)
_MESSAGE = "{} becomes infinite in float16 here, without an error."


def check(file: PythonFile) -> Iterator[Match]:
    """Find constants that overflow without an error."""
    for call in file.calls("where"):
        sides = (argument(call, 1, "input"), argument(call, 2, "other"))
        for value, other in (sides, sides[::-1]):
            if value is not None and other is not None:
                yield from _match(file, value, other)
    for node in file.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mult | ast.Add | ast.Sub):
            yield from _match(file, node.left, node.right)
            yield from _match(file, node.right, node.left)
    for assign in file.nodes(ast.Assign):
        target = assign.targets[0]
        if isinstance(target, ast.Subscript):
            yield from _match(file, assign.value, target.value)
    for call in file.calls("tensor", "as_tensor"):
        value, dtype = argument(call, 0, "data"), argument(call, 1, "dtype")
        half = file.dtype_precision(dtype) is Precision.HALF
        if value is not None and half and overflows_half(file.constant(value)):
            yield match_at(value, _MESSAGE.format(file.text(value)))


def _match(file: PythonFile, value: ast.expr, tensor: ast.expr) -> Iterator[Match]:
    if isinstance(tensor, ast.Constant) or not overflows_half(file.constant(value)):
        return
    if file.constant(tensor) is None and (
        is_certainly_half(file, tensor) or _has_given_dtype(file, tensor)
    ):
        yield match_at(value, _MESSAGE.format(file.text(value)))


def _has_given_dtype(file: PythonFile, node: ast.expr) -> bool:
    """Return whether a value is cast to a parameter that an assertion allows to be float16."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    casts = [a.value for n in names if (a := file.last_assignment(n)) and a.value is not None]
    for cast in casts:
        if (
            not isinstance(cast, ast.Call)
            or called_name(cast) not in {"to", "type"}
            or not cast.args
        ):
            continue
        function, dtype = file.function_of(cast), name_of(cast.args[0])
        if function is None or dtype not in parameter_names(function):
            continue
        for test in (a.test for a in file.nodes(ast.Assert) if file.function_of(a) is function):
            if isinstance(test, ast.Compare) and name_of(test.left) == dtype:
                return re.search(r"\bfloat16|half", ast.unparse(test)) is not None
    return False
