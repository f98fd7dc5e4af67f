"""A NaN loss or gradient is painted over.

## What it does
Finds `nan_to_num` on a loss or gradient, `torch.where` on its NaN, and multiplying a NaN loss by zero.

## Why is this bad?
The value changes, the graph does not. NaN * 0 is NaN, and the gradients that flow back through `where` and
`nan_to_num` of a NaN loss are NaN still, or zero without a trace. Nothing is cured; it is only not seen any
more.

## Example
```py
import torch

def step(loss, scaler):
    loss = torch.nan_to_num(loss)
    scaler.scale(loss).backward()
```

## Use instead
```py
import torch

def step(loss, scaler):
    scaler.scale(loss).backward()  # the scaler sees the NaN and skips the step
```

## References
Measured: after all three the gradients were still NaN.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.conditions import text_of
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, key, number, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG308",
    name="nan-hidden",
    cure="Leave the value alone, let the scaler skip, and find the operation that made it.",
    words=("nan_to_num", "isnan", "isinf", "isfinite"),
    also=("loss", "grad"),
)
_LOSS = re.compile(r"(^|[._])(total_|ce_|kd_|train_)?loss$|\.grad(\.data)?$")


def check(module: Model) -> Iterator[Match]:
    """Find the three ways to hide a NaN."""
    for call in module.calls("nan_to_num", "nan_to_num_"):
        function = module.dotted(call.func).startswith("torch.")
        value = argument(call, 0, "input") if function else receiver(call)
        if _is_loss(value):
            yield match_at(call, "nan_to_num hides the NaN, and its gradient is no better.")
    for call in module.calls("where"):
        if len(call.args) != 3 or not any(_is_loss(side) for side in call.args[1:]):
            continue
        if _asks_nan(call.args[0]):
            yield match_at(call, "where() hides the NaN of this loss; its gradient stays NaN.")
    for node in module.nodes(ast.BinOp):
        sides = (node.left, node.right)
        by_zero = isinstance(node.op, ast.Mult) and any(number(s) == 0 for s in sides)
        if by_zero and any(_is_loss(s) for s in sides) and _on_nan(module, node):
            yield match_at(node, "NaN * 0 is NaN: the gradients are as bad as before.")


def _is_loss(node: ast.AST | None) -> bool:
    return node is not None and bool(_LOSS.search(key(node)))


def _on_nan(module: Model, node: ast.AST) -> bool:
    tests = (p.test for p in module.ancestors(node) if isinstance(p, ast.If))
    return any(_asks_nan(test) for test in tests)


def _asks_nan(test: ast.AST) -> bool:
    return bool(re.search(r"isnan|isinf|isfinite", text_of(test)))
