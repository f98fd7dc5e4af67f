"""A loss is scaled for bfloat16, which does not need it.

## What it does
Finds a scaler that is always on, in a file whose autocast blocks all use bfloat16.

## Why is this bad?
bfloat16 has the range of float32, so gradients need no scaling. Only the cost remains: an inf check in every
step, and steps that are skipped because the scale itself was too large.

## Example
```py
import torch

scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    pass
```

## Use instead
```py
import torch

with torch.autocast("cuda", dtype=torch.bfloat16):
    pass
```

## References
pytorch documentation: Automatic Mixed Precision.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, has_keyword
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG409",
    name="scaler-with-bfloat16",
    cure="Remove the scaler, or create it with enabled=False for bfloat16.",
    contains=("bfloat16",),
    severity="note",
    preview=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find scalers in files that autocast only to bfloat16."""
    regions = file.autocast.by_node.values()
    dtypes = {region.dtype for region in regions if region.enabled is not False}
    if dtypes != {"bfloat16"}:
        return
    for call in file.roles.constructed_scalers:
        if not has_keyword(call, "enabled") or boolean(argument(call, -1, "enabled")) is True:
            yield match_at(call, "bfloat16 has the range of float32: gradients need no scaling.")
