"""Half is made the default type of every new tensor.

## What it does
Finds `torch.set_default_dtype(torch.float16)` and `torch.set_default_tensor_type` with a half type.

## Why is this bad?
Every parameter, statistic and constant made afterwards is half: sums over many values stall at 2048,
normalisation constants vanish, and updates are lost. Autocast chooses half only where it is safe.

## Example
```py
import torch

torch.set_default_dtype(torch.float16)
```

## Use instead
```py
import torch

with torch.autocast("cuda", dtype=torch.float16):
    pass
```

## References
`halfguard explain 2048+1`.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.precision import Precision
from halfguard.lint.rule import Meta

META = Meta(
    code="HG412",
    name="half-by-default",
    cure="Use autocast, and keep the default dtype.",
    words=("set_default_",),
)


def check(module: Model) -> Iterator[Match]:
    """Find half as a default."""
    for call in module.calls("set_default_dtype", "set_default_tensor_type"):
        if not call.args or not module.dotted(call.func).startswith("torch."):
            continue
        half = module.dtype(call.args[0]) is Precision.HALF
        if half or module.dotted(call.args[0]).endswith("HalfTensor"):
            yield match_at(call, "Every tensor made from here on is half.")
