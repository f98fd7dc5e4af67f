"""A loss is clamped from above.

## What it does
Finds `clamp` with a constant upper bound on a variable named loss.

## Why is this bad?
Above the bound the gradient is zero, so the model does not learn from the worst samples at all. NaN passes
through a clamp unchanged. The clamp only makes the loss curve look smooth.

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

from halfguard.lint.expressions import name_of
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import clamp_arguments
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG112",
    name="clamped-loss",
    cure="Clip the gradient norm instead: it limits large gradients and keeps them.",
    contains=("loss",),
    also_contains=("clamp", "clip"),
    pattern=r"loss(?:es)?\.cl(?:amp|ip)|cl(?:amp|ip)\w*\([\w.]*loss",
    needs_half=True,
)
_LOSS = re.compile(r"(^|_)loss(es)?$")


def check(file: PythonFile) -> Iterator[Match]:
    """Find clamps of losses."""
    for call in file.calls("clamp", "clip", "clamp_", "clamp_max"):
        tensor, _, upper = clamp_arguments(file, call)
        bound = file.constant(upper)
        name = name_of(tensor).rpartition(".")[2].lower()
        if bound is not None and bound > 0 and _LOSS.search(name):
            message = f"Above {bound:g} this loss has no gradient, and NaN passes through."
            yield match_at(call, message)
