"""A new scaler is created in every iteration.

## What it does
Finds `GradScaler(...)` inside the training loop.

## Why is this bad?
Each new scaler starts at 65,536 again, and the scale that the last one had found is lost. A model that needs
a smaller scale skips its first steps in every epoch, or all of them.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    for x, y in loader:
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
```

## Use instead
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
```

## References
pytorch#99640.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

META = Meta(
    code="HG210",
    name="scaler-in-loop",
    cure="Create the scaler once, before the loop.",
    contains=("GradScaler",),
    severity="error",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find scalers that are created inside the loop that uses them."""
    loops = {step.loop for step in file.steps if step.has("scaled_backward")}
    for call in file.roles.constructed_scalers:
        for parent in file.ancestors(call):
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                break
            if parent in loops:
                yield match_at(call, "Every iteration starts again with the initial scale.")
                break
