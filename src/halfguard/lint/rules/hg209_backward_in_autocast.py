"""The backward pass runs inside the autocast block.

## What it does
Finds `backward()` inside `with autocast(...)`.

## Why is this bad?
Backward operations already run in the dtype that autocast chose for the forward operation. Inside the block,
custom autograd functions, hooks and double backward are cast again. torch's documentation advises against it.

## Example
```py
import torch

def step(model, x, scaler):
    with torch.autocast("cuda"):
        loss = model(x).sum()
        scaler.scale(loss).backward()
```

## Use instead
```py
import torch

def step(model, x, scaler):
    with torch.autocast("cuda"):
        loss = model(x).sum()
    scaler.scale(loss).backward()
```

## References
pytorch documentation: Automatic Mixed Precision.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, name_of, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG209",
    name="backward-in-autocast",
    cure="End the autocast block before the backward pass.",
    contains=("autocast",),
    severity="note",
    preview=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find backward passes inside autocast blocks."""
    for call in file.calls("backward"):
        owner = receiver(call)
        if owner is None or call.args or name_of(owner) in {"self", "ctx"}:
            continue
        if isinstance(owner, ast.Call) and called_name(owner) == "super":
            continue
        region = file.autocast.directly_around(call)
        if region is not None and region.enabled is not False:
            yield match_at(call, "The backward pass runs under autocast.")
