"""A loss is clamped from above.

## What it does
Finds `clamp` with a constant upper bound on a value called loss.

## Why is this bad?
Above the bound the gradient is zero, so the samples that are worst are not learnt from at all; and NaN
passes through a clamp unchanged. It makes the curve look calm, and nothing else.

## Example
```py
import torch

def total(ce_loss):
    return torch.clamp(ce_loss, 0, 6)
```

## Use instead
```py
import torch

def total(logits, target):
    return torch.nn.functional.cross_entropy(logits.float(), target)
```

## References
Clip gradients after `unscale_` instead: see HG201.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, key, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG112",
    name="clamped-loss",
    cure="Clip the gradient norm instead; a gradient that is too large is bounded and kept.",
    words=("loss",),
    also=("clamp", "clip"),
)
_LOSS = re.compile(r"(^|_)loss(es)?$")


def check(module: Model) -> Iterator[Match]:
    """Find clamps of losses."""
    for call in module.calls("clamp", "clip", "clamp_", "clamp_max"):
        function = module.dotted(call.func).startswith("torch.")
        value = argument(call, 0, "input") if function else receiver(call)
        name = key(value).rpartition(".")[2].lower() if value is not None else ""
        bound = module.constant(argument(call, int(function) + 1, "max"))
        if bound is not None and bound > 0 and _LOSS.search(name):
            yield match_at(
                call, f"Above {bound:g} this loss has no gradient, and NaN passes through."
            )
