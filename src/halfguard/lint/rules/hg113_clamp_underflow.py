"""A lower bound that is zero in half bounds nothing.

## What it does
Finds `clamp` with a lower bound of at most 2.98e-8 on a tensor that may be half.

## Why is this bad?
The bound rounds to zero, so zeros stay zeros: the logarithm after it is -inf, the division 0/0. It is a
preview rule because what is clamped is float32 more often than the source of one file shows.

## Example
```py
import torch

def safe_log(p):
    return torch.log(torch.clamp(p, min=1e-9))
```

## Use instead
```py
import torch

def safe_log(p):
    return torch.log(torch.clamp(p.float(), min=1e-9))
```

## References
See HG103 and `halfguard explain 1e-9`.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.halves import SMALL, is_model_value, may_be_half, vanishes
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, last_name, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG113",
    name="clamp-underflow",
    cure="Compute in float32 (x.float()), or take the bound from torch.finfo(x.dtype).",
    words=("clamp",),
    also=SMALL,
    preview=True,
)


def check(module: Model) -> Iterator[Match]:
    """Find lower bounds that vanish."""
    for call in module.calls("clamp", "clamp_", "clamp_min", "clamp_min_"):
        function = module.dotted(call.func).startswith("torch.")
        tensor = argument(call, 0, "input") if function else receiver(call)
        bound = argument(call, int(function), "min")
        if tensor is None or bound is None or not vanishes(module.constant(bound)):
            continue
        if may_be_half(module, tensor) and (function or is_model_value(module, tensor)):
            message = f"{module.text(bound)} is 0 in half: {last_name(call)} keeps the zeros."
            yield match_at(bound, message)
