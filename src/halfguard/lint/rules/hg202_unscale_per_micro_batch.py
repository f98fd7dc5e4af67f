"""Gradients are unscaled in every micro-batch, but the optimizer does not step in every one.

## What it does
Finds `scaler.unscale_` that runs more often than `scaler.step`: outside the condition around the step, or in
an inner loop over micro-batches.

## Why is this bad?
The second call before `update()` raises "unscale_() has already been called on this optimizer since the last
update()". Also, unscaled gradients cannot be added to the scaled gradients of the next micro-batch.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn, every):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        scaler.scale(loss_fn(model(x), y) / every).backward()
        scaler.unscale_(optimizer)
        if (i + 1) % every == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
```

## Use instead
```py
import torch

def train(model, optimizer, loader, loss_fn, every):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        scaler.scale(loss_fn(model(x), y) / every).backward()
        if (i + 1) % every == 0:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
```

## References
huggingface/transformers#23935, pytorch#36601.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.conditions import is_schedule_check
from halfguard.lint.event import Event
from halfguard.lint.match import Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta
from halfguard.lint.steps import Step

META = Meta(
    code="HG202",
    name="unscale-per-micro-batch",
    cure="Unscale once, directly before clipping and stepping, under the same condition as the step.",
    contains=("unscale_",),
    severity="error",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find unscaling that happens more often than stepping."""
    for step in file.steps:
        steps = step.find("scaler_step")
        for unscale in step.find("unscale"):
            mine = [
                s for s in steps if s.optimizer == unscale.optimizer and not s.excludes(unscale)
            ]
            if mine and all(_runs_less_often(step, s, unscale) for s in mine):
                message = (
                    "unscale_ runs in every micro-batch, but the step does not: it will raise."
                )
                yield match_at(unscale.node, message)


def _runs_less_often(step: Step, scaler_step: Event, unscale: Event) -> bool:
    """Return whether a step runs less often than ``unscale_``: on a schedule, or in fewer loops."""
    extra = [t for t in scaler_step.tests if t not in unscale.tests]
    if any(is_schedule_check(test) for test in extra):
        return True
    inner = step.inner_loops(unscale)
    if not inner or any(loop in scaler_step.loops for loop in inner):
        return False
    target = inner[-1].target if isinstance(inner[-1], ast.For) else None
    # A loop over optimizers is not a loop over micro-batches.
    return target is None or "opt" not in ast.unparse(target).lower()
