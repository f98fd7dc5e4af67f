"""The host waits for the device once per parameter.

## What it does
Finds loops over parameters that read a value from the device: `.item()`, or an `if` on `isnan`, `isinf` or
`isfinite`.

## Why is this bad?
Each read blocks the host until the device has finished its work. With hundreds of parameters in every step,
the check costs more than the step. The scaler already does this check, in one fused pass on the device.

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
`halfguard.numerics.health` does this in a constant number of operations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name
from halfguard.lint.match import Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

META = Meta(
    code="HG306",
    name="sync-per-parameter",
    cure="Reduce over all parameters on the device and read one value.",
    contains=("parameters()",),
    also_contains=("isnan", "isinf", "isfinite", ".item("),
)
_CHECKS = ("isnan", "isinf", "isfinite")


def check(file: PythonFile) -> Iterator[Match]:
    """Find reads inside loops over parameters that use gradients."""
    reads = [*file.calls("item")]
    reads += [c for c in file.calls(*_CHECKS) if _controls_branch(file, c)]
    for call in reads:
        loop = _parameter_loop(file, call)
        if loop is not None and ".grad" in ast.unparse(loop):
            yield match_at(call, "This waits for the device once per parameter.")


def _parameter_loop(file: PythonFile, node: ast.AST) -> ast.For | None:
    for parent in file.ancestors(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        over = parent.iter if isinstance(parent, ast.For) else None
        named = called_name(over) if isinstance(over, ast.Call) else ""
        if isinstance(parent, ast.For) and named in {"parameters", "named_parameters"}:
            return parent
    return None


def _controls_branch(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the host branches on the result."""
    child: ast.AST = call
    for parent in file.ancestors(call):
        if isinstance(parent, ast.If | ast.IfExp | ast.While | ast.Assert):
            return parent.test is child
        if isinstance(parent, ast.stmt):
            return False
        child = parent
    return False
