"""Logits are clamped to a small range.

## What it does
Finds `clamp` with two constants of at most 30 on a value called logits.

## Why is this bad?
Outside the range the gradient is zero, so a confidently wrong sample is never corrected; and with logits
within ±5 the cross-entropy over 50,000 classes cannot fall below 1.18. Losses in float32 need no clamp.

## Example
```py
import torch

def loss(logits, target):
    logits = torch.clamp(logits, -5, 5)
    return torch.nn.functional.cross_entropy(logits, target)
```

## Use instead
```py
import torch

def loss(logits, target):
    return torch.nn.functional.cross_entropy(logits.float(), target)
```

## References
`halfguard.ops.soft_cap` bounds logits and keeps a gradient everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, key, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG110",
    name="clamped-logits",
    cure="Compute the loss in float32; if a bound is wanted, use a soft cap (c * tanh(x / c)).",
    words=("logit",),
    also=("clamp", "clip"),
)


def check(module: Model) -> Iterator[Match]:
    """Find clamps of logits."""
    for call in module.calls("clamp", "clip", "clamp_"):
        function = module.dotted(call.func).startswith("torch.")
        value = argument(call, 0, "input") if function else receiver(call)
        name = key(value).rpartition(".")[2].lower() if value is not None else ""
        bounds = [module.constant(argument(call, int(function) + i, side))
                  for i, side in enumerate(("min", "max"))]  # fmt: skip
        if "logit" in name and all(b is not None and abs(b) <= 30 for b in bounds):
            low, high = bounds
            yield match_at(
                call,
                f"Logits outside [{low:g}, {high:g}] get no gradient: this hides the overflow.",
            )
