"""A lower bound that is zero in float16 has no effect.

## What it does
Finds `clamp` with a lower bound of at most 2.98e-8 on a tensor that may be float16.

## Why is this bad?
The bound rounds to zero, so zeros stay zeros: the next logarithm is -inf, the next division 0/0. This is a
preview rule because the clamped value is float32 more often than one file can show.

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

from halfguard.lint.expressions import called_name
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import (
    SMALL_CONSTANTS,
    clamp_arguments,
    is_model_value,
    may_be_half,
    underflows_half,
)
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG113",
    name="clamp-underflow",
    cure="Compute in float32 (x.float()), or take the bound from torch.finfo(x.dtype).",
    contains=("clamp",),
    pattern=SMALL_CONSTANTS,
    preview=True,
    needs_half=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find lower bounds that underflow."""
    for call in file.calls("clamp", "clamp_", "clamp_min", "clamp_min_"):
        tensor, bound, _ = clamp_arguments(file, call)
        if tensor is None or bound is None or not underflows_half(file.constant(bound)):
            continue
        if may_be_half(file, tensor) and (file.is_torch_call(call) or is_model_value(file, tensor)):
            message = f"{file.text(bound)} is 0 in float16: {called_name(call)} keeps zeros."
            yield match_at(bound, message)
