"""The scaler and autocast are for different devices.

## What it does
Finds `GradScaler()` for CUDA (the default) in a file whose autocast blocks are all for the CPU.

## Why is this bad?
On a machine without CUDA such a scaler only warns and turns itself off: the run continues without a loss
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
Observed on torch 2.13: a warning, and `scaler.is_enabled()` is False.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, has_keyword, string
from halfguard.lint.match import Edit, Fix, Match, Meta, Span, match_at
from halfguard.lint.python_file import PythonFile, make_fix, replace

META = Meta(
    code="HG408",
    name="scaler-on-another-device",
    cure='Pass the device: torch.amp.GradScaler("cpu").',
    contains=("GradScaler",),
    severity="error",
    fix="safe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find CUDA scalers in files that autocast only on the CPU."""
    devices = {region.device for region in file.autocast.by_node.values()}
    if devices != {"cpu"}:
        return
    for call in file.calls("GradScaler"):
        if file.full_name(call.func) not in {"torch.amp.GradScaler", "torch.GradScaler"}:
            continue
        device = argument(call, 0, "device")
        if has_keyword(call, "") or boolean(argument(call, -1, "enabled")) is False:
            continue
        if device is None or string(device) == "cuda":
            message = (
                "This scaler is for CUDA, but autocast is for the CPU: the scaler turns itself off."
            )
            yield match_at(call, message, _fix(file, call, device))


def _fix(file: PythonFile, call: ast.Call, device: ast.expr | None) -> Fix | None:
    if device is not None:
        return make_fix("safe", replace(file, device, '"cpu"'))
    function = call.func
    line, column = function.end_lineno or 0, (function.end_col_offset or 0) + 1
    text = '"cpu", ' if call.keywords else '"cpu"'
    return Fix("safe", (Edit(Span(line, column, line, column), text),))
