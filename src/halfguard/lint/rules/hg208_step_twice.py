"""`scaler.step` is called twice for one optimizer before `update`.

## What it does
Finds two `scaler.step` calls with the same optimizer on one path, without an `update()` between them.

## Why is this bad?
The second call raises "step() has already been called since the last update()".

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.scale(loss_fn(model(y), x)).backward()
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
        scaler.scale(loss_fn(model(y), x)).backward()
        scaler.step(optimizer)
        scaler.update()
```

## References
Applio#860.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG208",
    name="step-twice",
    cure="Step each optimizer once between two updates.",
    contains=("caler",),
    also_contains=(".step(",),
    severity="error",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find repeated steps."""
    for step in file.steps:
        steps = [e for e in step.find("scaler_step") if e.optimizer]
        for first, second in itertools.pairwise(steps):
            same = (first.owner, first.optimizer) == (second.owner, second.optimizer)
            if not same or first.excludes(second) or first.node is second.node:
                continue
            if file.is_assigned_between(first, second):
                continue
            if set(second.conditions) <= set(first.conditions) and not any(
                event.kind == "scaler_update" for event in step.between(first, second)
            ):
                message = f"{second.optimizer} was already stepped since the last update()."
                yield match_at(second.node, message)
