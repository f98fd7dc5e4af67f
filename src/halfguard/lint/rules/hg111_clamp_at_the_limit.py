"""Values are clamped just below the largest half.

## What it does
Finds `clamp` with a constant between 30,000 and 65,504.

## Why is this bad?
What overflowed is already inf, and often NaN one operation later, before the clamp sees it. Where the
clamp does act, the gradient is zero. Bound the value where it is made, or run that part in float32.

## Example
```py
import torch

def encode(projection, x):
    return torch.clamp(projection(x), -65000, 65000)
```

## Use instead
```py
import torch

def encode(projection, x):
    with torch.autocast("cuda", enabled=False):
        return projection.float()(x.float())
```

## References
huggingface/transformers#9295.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, key, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG111",
    name="clamp-at-the-limit",
    cure="Run the part that overflows in float32, or normalise what goes into it.",
    words=("clamp", "clip"),
    also=("000", "504", "e4"),
)


def check(module: Model) -> Iterator[Match]:
    """Find clamps near 65504."""
    for call in module.calls("clamp", "clip", "clamp_"):
        owner = receiver(call)
        if owner is None or key(owner) in {"np", "numpy"}:
            continue
        function = module.dotted(call.func).startswith("torch.")
        low, high = (module.constant(argument(call, int(function) + i, side))
                     for i, side in enumerate(("min", "max")))  # fmt: skip
        near = [b for b in (low, high) if b is not None and 30_000 <= abs(b) <= 65_504]
        # 32767 and 65535 are the limits of integers: audio samples, depth maps.
        if near and not any(abs(b) in {32_767, 32_768, 65_535} for b in near):
            yield match_at(
                call, "A clamp below 65504 comes too late: what overflowed is inf or NaN by now."
            )
