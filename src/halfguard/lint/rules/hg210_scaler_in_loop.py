"""A new scaler is made in every iteration.

## What it does
Finds `GradScaler(...)` inside the loop that trains.

## Why is this bad?
Each new scaler begins at 65,536 again. What the last one had learnt is lost, and a model that needs a
smaller scale skips its first steps in every epoch, or all of them.

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
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta

META = Meta(
    code="HG210",
    name="scaler-in-loop",
    cure="Make the scaler once, before the loop.",
    words=("GradScaler",),
    severity="error",
)


def check(module: Model) -> Iterator[Match]:
    """Find scalers made where they are used."""
    loops = {step.loop for step in module.steps if step.has("scaled_backward")}
    for call in module.roles.constructed_scalers:
        for parent in module.ancestors(call):
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                break
            if parent in loops:
                yield match_at(call, "Every iteration starts again with the initial scale.")
                break
