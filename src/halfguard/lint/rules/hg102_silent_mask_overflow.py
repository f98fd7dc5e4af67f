"""A constant outside the range of float16 becomes infinite without an error.

## What it does
Finds `torch.where`, item assignment and arithmetic with a constant such as `-1e9` on float16 values.

## Why is this bad?
Unlike `masked_fill`, these operations do not raise: the constant becomes infinite. A row that is fully masked
is then NaN after softmax, and `(1 - mask) * -1e9` is NaN wherever the mask is 1, because 0 * -inf is NaN.

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
from collections.abc import Iterator

from halfguard.lint.expressions import argument
from halfguard.lint.match import Match, match_at
from halfguard.lint.numeric_checks import LARGE_CONSTANTS, is_certainly_half, overflows_half
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

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
    if file.constant(tensor) is None and is_certainly_half(file, tensor):
        yield match_at(value, _MESSAGE.format(file.text(value)))
