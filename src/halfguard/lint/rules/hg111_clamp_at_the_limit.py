"""Values are clamped just below the largest float16 value.

## What it does
Finds `clamp` with a constant bound between 30,000 and 65,504.

## Why is this bad?
A value that overflowed is already inf before the clamp, and often NaN one operation later. Where the clamp
takes effect, the gradient is zero. Limit the value where it is computed, or run that part in float32.

Where nothing overflows, the clamp does nothing. That was so in both places of public code that were judged,
so the rule is in preview.

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

from halfguard.lint.expressions import name_of, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import clamp_arguments
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG111",
    name="clamp-at-the-limit",
    cure="Run the part that overflows in float32, or normalize its input.",
    contains=("clamp", "clip"),
    pattern=r"\b(?:[3-6]\d_?\d{3}|[3-6](?:\.\d+)?e\+?0?4)\b",
    needs_half=True,
    preview=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find clamps near 65504."""
    for call in file.calls("clamp", "clip", "clamp_"):
        owner = receiver(call)
        if owner is None or name_of(owner) in {"np", "numpy"}:
            continue
        bounds = map(file.constant, clamp_arguments(file, call)[1:])
        near = [b for b in bounds if b is not None and 30_000 <= abs(b) <= 65_504]
        # 32767 and 65535 are limits of integers, as in audio samples and depth maps.
        if near and not any(abs(b) in {32_767, 32_768, 65_535} for b in near):
            message = "A clamp below 65504 is too late: after an overflow, values are inf or NaN."
            yield match_at(call, message)
