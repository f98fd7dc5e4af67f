"""A check for NaN lets infinity pass.

## What it does
Finds `if torch.isnan(loss)` without `isinf` or `isfinite` beside it, in a file about 16-bit training.

## Why is this bad?
Overflow in half gives inf first, and NaN only when two infinities meet. A check for NaN alone is late.

## Example
```py
import torch

def check(loss):
    with torch.autocast("cuda", dtype=torch.float16):
        if torch.isnan(loss):
            raise ValueError("loss is NaN")
```

## Use instead
```py
import torch

def check(loss):
    with torch.autocast("cuda", dtype=torch.float16):
        if not torch.isfinite(loss):
            raise ValueError("loss is not finite")
```

## Fix safety
Unsafe: it also acts on infinity.

## References
pytorch#40497.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import replace
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, key
from halfguard.lint.rule import Meta

META = Meta(
    code="HG310",
    name="isnan-alone",
    cure="Ask torch.isfinite instead.",
    words=("isnan",),
    fix="unsafe",
    preview=True,
)


def check(module: Model) -> Iterator[Match]:
    """Find tests for NaN alone."""
    if not module.uses_half:
        return
    for node in module.nodes(ast.If):
        test = node.test
        if not isinstance(test, ast.Call) or module.dotted(test.func) != "torch.isnan":
            continue
        value = argument(test, 0, "input")
        if value is not None and "loss" in key(value).lower():
            edit = replace(module, test, f"not torch.isfinite({module.text(value)})")
            fix = Fix("unsafe", (edit,), ("torch",)) if edit else None
            yield match_at(test, "Overflow shows as inf first: this sees NaN only.", fix)
