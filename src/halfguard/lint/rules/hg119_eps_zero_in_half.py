"""An eps is added to a float16 tensor, in which it is zero.

## What it does
Finds constants of at most 2.98e-8 that are added to a tensor before `log`, `sqrt`, `rsqrt` or a division, if
the same file shows that the tensor is float16. HG103 reports tensors that may be.

## Why is this bad?
The smallest positive float16 value is about 6e-8, so `1e-8` becomes 0. Where the rest of the sum is 0 the
result is -inf or 0/0: a group of equal rewards, whose deviation is 0, makes the advantages NaN.

## Example
```py
import torch

def advantages(tokens):
    rewards = (tokens > 12).half().mean(-1)
    return (rewards - rewards.mean()) / (rewards.std() + 1e-8)
```

## Use instead
```py
import torch

def advantages(tokens):
    rewards = (tokens > 12).float().mean(-1)
    return (rewards - rewards.mean()) / (rewards.std() + 1e-8)
```

## References
See `halfguard explain 1e-8`.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import SMALL_CONSTANTS, find_small_terms
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG119",
    name="eps-zero-in-half",
    cure="Compute in float32 (x.float()), or take eps from torch.finfo(x.dtype).",
    contains=("half(", "float16"),
    pattern=SMALL_CONSTANTS,
    needs_half=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find constants that are zero in the dtype of the tensor they are added to."""
    for term in find_small_terms(file):
        if file.is_proven_half(term.rest):
            eps = file.text(term.eps)
            yield match_at(term.eps, f"{eps} is 0 in float16: it has no effect here.")
