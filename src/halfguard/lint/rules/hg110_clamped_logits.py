"""Logits are clamped to a small range.

## What it does
Finds `clamp` with two constant bounds of magnitude at most 30 on a variable named logits.

## Why is this bad?
Outside the range the gradient is zero, so a confidently wrong sample is never corrected. With logits within
±5, the cross-entropy over 50,000 classes cannot fall below 1.18. A loss computed in float32 needs no clamp.

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

import re
from collections.abc import Iterator

from halfguard.lint.expressions import name_of
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import clamp_arguments
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG110",
    name="clamped-logits",
    cure="Compute the loss in float32; if you need a bound, use a soft cap (c * tanh(x / c)).",
    contains=("logit",),
    also_contains=("clamp", "clip"),
    pattern=r"logits?(?:_\d+)?\.cl(?:amp|ip)|cl(?:amp|ip)\w*\([\w.]*logits?\b",
    needs_half=True,
)
_LOGITS = re.compile(r"(^|_)logits?(_\d+)?$")


def check(file: PythonFile) -> Iterator[Match]:
    """Find clamps of logits."""
    for call in file.calls("clamp", "clip", "clamp_"):
        tensor, *bounds = clamp_arguments(file, call)
        low, high = map(file.constant, bounds)
        name = name_of(tensor).rpartition(".")[2].lower()
        if _LOGITS.search(name) and all(b is not None and abs(b) <= 30 for b in (low, high)):
            message = (
                f"Logits outside [{low:g}, {high:g}] get no gradient: this hides the overflow."
            )
            yield match_at(call, message)
