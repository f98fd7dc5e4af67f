"""Mixed precision uses apex.amp.

## What it does
Finds `apex.amp.initialize`.

## Why is this bad?
apex.amp is no longer developed, and it patches functions of torch that have changed since. `torch.amp` does
the same, is tested with every release, and can scale several models and optimizers separately.

## Example
```py
import torch
from apex import amp

def prepare(model, optimizer):
    return amp.initialize(model, optimizer, opt_level="O1")
```

## Use instead
```py
import torch

def prepare(model, optimizer):
    return model, optimizer, torch.amp.GradScaler("cuda")
```

## References
The apex repository names torch.amp as its successor.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG413",
    name="apex-amp",
    cure="Use torch.amp.autocast and torch.amp.GradScaler.",
    contains=("apex",),
    once=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find the entry point of apex.amp."""
    for call in file.calls("initialize"):
        if file.full_name(call.func) == "apex.amp.initialize":
            yield match_at(call, "apex.amp is no longer developed.")
