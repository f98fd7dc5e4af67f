"""The host waits for the device once for every parameter.

## What it does
Finds loops over parameters that read a value back: `.item()`, `float(...)`, or an `if` on `isnan`, `isinf`
or `isfinite`.

## Why is this bad?
Each read stops the host until the device has caught up. With hundreds of parameters in every step, the
check costs more than the step. The scaler has already made it, in one fused pass on the device.

## Example
```py
import torch

def has_overflow(model):
    for p in model.parameters():
        if p.grad is not None and torch.isnan(p.grad).any():
            return True
    return False
```

## Use instead
```py
import torch

def has_overflow(model):
    norms = torch._foreach_norm([p.grad for p in model.parameters() if p.grad is not None])
    return not torch.stack(norms).isfinite().all()
```

## References
`halfguard.numerics.health` does it in a constant number of operations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.conditions import text_of
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import last_name
from halfguard.lint.rule import Meta

META = Meta(
    code="HG306",
    name="sync-per-parameter",
    cure="Reduce over all parameters on the device, and read one value.",
    words=("parameters()",),
    also=("isnan", "isinf", "isfinite", ".item("),
)
_CHECKS = ("isnan", "isinf", "isfinite")


def check(module: Model) -> Iterator[Match]:
    """Find reads inside loops over parameters that look at gradients."""
    reads = [*module.calls("item")]
    reads += [c for c in module.calls(*_CHECKS) if _decides(module, c)]
    for call in reads:
        loop = _parameter_loop(module, call)
        if loop is not None and ".grad" in text_of(loop):
            yield match_at(call, "This waits for the device once for every parameter.")


def _parameter_loop(module: Model, node: ast.AST) -> ast.For | None:
    for parent in module.ancestors(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        over = parent.iter if isinstance(parent, ast.For) else None
        named = last_name(over) if isinstance(over, ast.Call) else ""
        if isinstance(parent, ast.For) and named in {"parameters", "named_parameters"}:
            return parent
    return None


def _decides(module: Model, call: ast.Call) -> bool:
    """Whether the host branches on the result."""
    child: ast.AST = call
    for parent in module.ancestors(call):
        if isinstance(parent, ast.If | ast.IfExp | ast.While | ast.Assert):
            return parent.test is child
        if isinstance(parent, ast.stmt):
            return False
        child = parent
    return False
