"""The scaler belongs to another device than autocast.

## What it does
Finds `GradScaler()` for CUDA (also by default) in a file whose autocast blocks are all for the CPU.

## Why is this bad?
On a machine without CUDA such a scaler only warns, and turns itself off: the run goes on without any loss
scale.

## Example
```py
import torch

scaler = torch.amp.GradScaler()
with torch.autocast("cpu", dtype=torch.float16):
    pass
```

## Use instead
```py
import torch

scaler = torch.amp.GradScaler("cpu")
with torch.autocast("cpu", dtype=torch.float16):
    pass
```

## Fix safety
Safe: gives the scaler the device of the autocast blocks.

## References
Seen on torch 2.13: a warning, and `scaler.is_enabled()` is False.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import replace
from halfguard.lint.match import Edit, Fix, Match, Span, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, boolean, has_keyword, string
from halfguard.lint.rule import Meta

META = Meta(
    code="HG408",
    name="scaler-on-another-device",
    cure='Pass the device: torch.amp.GradScaler("cpu").',
    words=("GradScaler",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find scalers whose device no autocast block has."""
    devices = {region.device for region in module.regions.all.values()}
    if devices != {"cpu"}:
        return
    for call in module.calls("GradScaler"):
        if module.dotted(call.func) not in {"torch.amp.GradScaler", "torch.GradScaler"}:
            continue
        device = argument(call, 0, "device")
        if has_keyword(call, "") or boolean(argument(call, -1, "enabled")) is False:
            continue
        if device is None or string(device) == "cuda":
            message = (
                "This scaler is for CUDA, and autocast here is for the CPU: it turns itself off."
            )
            yield match_at(call, message, _fix(module, call, device))


def _fix(module: Model, call: ast.Call, device: ast.expr | None) -> Fix | None:
    if device is not None:
        edit = replace(module, device, '"cpu"')
        return Fix("safe", (edit,)) if edit else None
    function = call.func
    line, column = function.end_lineno or 0, (function.end_col_offset or 0) + 1
    text = '"cpu", ' if call.keywords else '"cpu"'
    return Fix("safe", (Edit(Span(line, column, line, column), text),))
