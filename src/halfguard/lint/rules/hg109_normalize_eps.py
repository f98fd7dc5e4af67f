"""The default eps of `F.normalize` and `cosine_similarity` is zero in float16.

## What it does
Finds both functions on float16 values, with an eps that rounds to zero; the defaults do.

## Why is this bad?
The defaults are 1e-12 and 1e-8. In float16 both are 0, and a zero vector becomes NaN instead of zero.

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

from halfguard.lint.expressions import argument, called_name, has_keyword
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import is_half, underflows_half
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG109",
    name="normalize-eps",
    cure="Normalize in float32, or pass an eps that float16 can represent, such as 1e-6.",
    contains=("normalize(", "cosine_similarity("),
    also_contains=(".half()", "float16", "torch.half"),
    needs_half=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find normalizations of float16 values."""
    for call in file.calls("normalize", "cosine_similarity"):
        # Autocast runs the norm in float32, where the eps has an effect.
        if not file.is_torch_call(call) or not call.args or file.autocast.is_on(call):
            continue
        eps = argument(call, 3, "eps")
        is_zero = underflows_half(file.constant(eps)) if eps else not has_keyword(call, "eps")
        if is_zero and is_half(file, call.args[0]):
            name = called_name(call)
            yield match_at(call, f"The eps of {name} is 0 in float16: a zero vector becomes NaN.")
