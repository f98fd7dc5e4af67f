"""A hand-written norm squares values that may be half.

## What it does
Finds `rsqrt` or `sqrt` of a mean or sum of squares whose input was not cast to float32.

## Why is this bad?
A square overflows half from 256 on and vanishes below 1.7e-4. CUDA's autocast computes powers in float32,
but half weights, CPU autocast and compiled kernels do not.

## Example
```py
import torch

class RMSNorm(torch.nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
```

## Use instead
```py
import torch

class RMSNorm(torch.nn.Module):
    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)
```

## References
pytorch#66707. `halfguard.ops.rms_norm` is the operation as a whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.halves import may_be_half
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, last_name, number, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG108",
    name="square-in-half",
    cure="Cast to float32 before squaring: x.float().",
    words=("sqrt(",),
    also=("pow(2)", "pow(2.0)", "** 2", "**2", "square", ", 2)"),
)


def check(module: Model) -> Iterator[Match]:
    """Find roots of means of squares."""
    for call in module.calls("rsqrt", "sqrt"):
        inner: ast.AST | None = receiver(call)
        if module.dotted(call.func).startswith("torch."):
            inner = argument(call, 0, "input")
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
            inner = inner.left
        if isinstance(inner, ast.Name):
            bound = module.latest(inner)
            inner = bound.value if bound else None
        base = _squared(module, inner)
        if base is not None and module.roles.is_torch_module(call) and may_be_half(module, base):
            yield match_at(call, "The squares under this root overflow half from 256 on.")


def _squared(module: Model, node: ast.AST | None) -> ast.expr | None:
    """``x`` in ``x.pow(2).mean(...)``, ``torch.mean(x ** 2)`` and their like."""
    if not isinstance(node, ast.Call) or last_name(node) not in {"mean", "sum"}:
        return None
    function = module.dotted(node.func).startswith("torch.")
    inner = argument(node, 0, "input") if function else receiver(node)
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Pow):
        return inner.left if number(inner.right) == 2 else None
    if isinstance(inner, ast.Call):
        base = receiver(inner)
        if module.dotted(inner.func).startswith("torch."):
            base = argument(inner, 0, "input")
        power = inner.args[-1] if inner.args else None
        if last_name(inner) == "square" or (last_name(inner) == "pow" and number(power) == 2):
            return base
    return None
