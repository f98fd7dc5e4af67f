"""A loss is scaled for bfloat16, which does not need it.

## What it does
Finds a scaler that is surely on in a file whose autocast blocks are all bfloat16.

## Why is this bad?
bfloat16 has the range of float32, so there is nothing to rescue. What is left is the cost: an inf check in
every step, and steps skipped after a false alarm of the scale itself.

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

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, boolean, has_keyword
from halfguard.lint.rule import Meta

META = Meta(
    code="HG409",
    name="scaler-with-bfloat16",
    cure="Leave the scaler out, or make it with enabled=False for bfloat16.",
    words=("bfloat16",),
    severity="note",
    preview=True,
)


def check(module: Model) -> Iterator[Match]:
    """Find scalers beside bfloat16 alone."""
    dtypes = {region.dtype for region in module.regions.all.values() if region.enabled is not False}
    if dtypes != {"bfloat16"}:
        return
    for call in module.roles.constructed_scalers:
        if not has_keyword(call, "enabled") or boolean(argument(call, -1, "enabled")) is True:
            yield match_at(call, "bfloat16 has the range of float32: nothing needs scaling.")
