"""A constant beyond the range of half becomes -inf without a word.

## What it does
Finds `torch.where`, item assignment and arithmetic with a constant such as `-1e9` on values that are half.

## Why is this bad?
Unlike `masked_fill`, these do not raise: the constant turns into an infinity. A row that is masked
throughout is then NaN after softmax, and `(1 - mask) * -1e9` is NaN wherever the mask is 1, since
0 * -inf is NaN.

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

from halfguard.lint.halves import BIG, does_not_fit, surely_half
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument
from halfguard.lint.precision import Precision
from halfguard.lint.rule import Meta

META = Meta(
    code="HG102",
    name="silent-mask-overflow",
    cure="Use masked_fill with torch.finfo(x.dtype).min.",
    words=("float16", "half", "autocast"),
    also=BIG,
)
_MESSAGE = "{} is an infinity in half here, and no error says so."


def check(module: Model) -> Iterator[Match]:
    """Find constants that overflow without an error."""
    for call in module.calls("where"):
        sides = (argument(call, 1, "input"), argument(call, 2, "other"))
        for value, other in (sides, sides[::-1]):
            if value is not None and other is not None:
                yield from _match(module, value, other)
    for node in module.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mult | ast.Add | ast.Sub):
            yield from _match(module, node.left, node.right)
            yield from _match(module, node.right, node.left)
    for assign in module.nodes(ast.Assign):
        target = assign.targets[0]
        if isinstance(target, ast.Subscript):
            yield from _match(module, assign.value, target.value)
    for call in module.calls("tensor", "as_tensor"):
        value, dtype = argument(call, 0, "data"), argument(call, 1, "dtype")
        half = module.dtype(dtype) is Precision.HALF
        if value is not None and half and does_not_fit(module.constant(value)):
            yield match_at(value, _MESSAGE.format(module.text(value)))


def _match(module: Model, value: ast.expr, tensor: ast.expr) -> Iterator[Match]:
    if isinstance(tensor, ast.Constant) or not does_not_fit(module.constant(value)):
        return
    if module.constant(tensor) is None and surely_half(module, tensor):
        yield match_at(value, _MESSAGE.format(module.text(value)))
