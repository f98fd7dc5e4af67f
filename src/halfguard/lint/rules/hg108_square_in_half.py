"""A hand-written norm squares values that may be float16.

## What it does
Finds `rsqrt` or `sqrt` of a mean or sum of squares whose input was not cast to float32.

## Why is this bad?
A square overflows float16 for values from 256 on, and becomes zero for values below 1.7e-4. CUDA's autocast
computes powers in float32, but float16 weights, CPU autocast and compiled kernels do not.

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
pytorch#66707. `halfguard.ops.rms_norm` computes the whole operation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, number
from halfguard.lint.match import Match, match_at
from halfguard.lint.numeric_checks import may_be_half
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

META = Meta(
    code="HG108",
    name="square-in-half",
    cure="Cast to float32 before squaring: x.float().",
    contains=("sqrt(",),
    also_contains=("pow(2)", "pow(2.0)", "** 2", "**2", "square", ", 2)"),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find roots of means of squares."""
    for call in file.calls("rsqrt", "sqrt"):
        inner = file.tensor_of(call)
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
            inner = inner.left
        base = _squared(file, file.assigned_value(inner))
        if base is not None and file.roles.is_in_nn_module(call) and may_be_half(file, base):
            yield match_at(call, "Values of 256 and above overflow float16 when squared.")


def _squared(file: PythonFile, node: ast.AST | None) -> ast.expr | None:
    """Return ``x`` of ``x.pow(2).mean(...)``, ``torch.mean(x ** 2)`` and similar expressions."""
    if not isinstance(node, ast.Call) or called_name(node) not in {"mean", "sum"}:
        return None
    inner = file.tensor_of(node)
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Pow):
        return inner.left if number(inner.right) == 2 else None
    if isinstance(inner, ast.Call):
        power = inner.args[-1] if inner.args else None
        if called_name(inner) == "square" or (called_name(inner) == "pow" and number(power) == 2):
            return file.tensor_of(inner)
    return None
