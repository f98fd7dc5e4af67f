"""The default eps of `F.normalize` and `cosine_similarity` is zero in half.

## What it does
Finds both functions on values that are half, with an eps (or a default) that rounds to zero.

## Why is this bad?
The defaults are 1e-12 and 1e-8. In half both are 0, and a zero vector becomes NaN instead of zero.

## Example
```py
import torch
import torch.nn.functional as F

def unit(x):
    return F.normalize(x.half(), dim=-1)
```

## Use instead
```py
import torch
import torch.nn.functional as F

def unit(x):
    return F.normalize(x.float(), dim=-1)
```

## References
huggingface/diffusers#13316.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.halves import vanishes
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, has_keyword
from halfguard.lint.precision import Precision
from halfguard.lint.rule import Meta

META = Meta(
    code="HG109",
    name="normalize-eps",
    cure="Normalise in float32, or pass an eps that half can hold, such as 1e-6.",
    words=("normalize", "cosine_similarity"),
    also=("half", "float16"),
)


def check(module: Model) -> Iterator[Match]:
    """Find normalisations of half values."""
    for name, position in (("normalize", 3), ("cosine_similarity", 3)):
        for call in module.calls(name):
            if not module.dotted(call.func).startswith("torch.") or not call.args:
                continue
            eps = argument(call, position, "eps")
            lost = (
                vanishes(module.constant(eps)) if eps is not None else not has_keyword(call, "eps")
            )
            if lost and module.precision(call.args[0]) is Precision.HALF:
                yield match_at(call, f"The eps of {name} is 0 in half: a zero vector becomes NaN.")
