"""The scheduler steps even if the optimizer step was skipped.

## What it does
Finds `scheduler.step()` after `scaler.step` in every iteration, without a condition.

## Why is this bad?
When the scaler skips a step, the learning rate changes but the weights do not. During warmup the first
updates are lost in this way, and torch warns that `lr_scheduler.step()` came before `optimizer.step()`. Over
a schedule of thousands of steps a few lost ones hardly matter: in public code this was so in all eight places
that were judged, so the rule is in preview.

## Example
```py
import torch

def train(model, optimizer, scheduler, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
```

## Use instead
```py
import halfguard as hg

def train(model, optimizer, scheduler, loader, loss_fn):
    guard = hg.Guard(model, optimizer, scheduler=scheduler)
    for batch in loader:
        guard.step(loss_fn, batch)
```

## References
pytorch#44511, lightning#16228.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from halfguard.lint.conditions import AMP_IS_ON
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.steps import Event, Step

META = Meta(
    code="HG304",
    name="scheduler-regardless",
    cure="Step the scheduler only if the optimizer stepped; halfguard.Guard does that.",
    contains=("caler",),
    also_contains=(".step(",),
    preview=True,
)
_STEP = re.compile(r"step|optimi[sz]e|update|backward|train_batch|iter")


def check(file: PythonFile) -> Iterator[Match]:
    """Find scheduler steps that do not depend on the optimizer step."""
    for step in file.steps:
        if step.loop is None and not _is_one_step(file, step):
            continue
        for scheduler in step.find("scheduler_step"):
            scalers = step.before(scheduler, "scaler_step")
            same_loop = bool(scalers) and scalers[0].loops == scheduler.loops
            if same_loop and _has_no_further_condition(scheduler, scalers[0]):
                message = f"{scheduler.owner} steps even if {scalers[0].owner} skips the step."
                yield match_at(scheduler.node, message)


def _is_one_step(file: PythonFile, step: Step) -> bool:
    """Return whether a function without a loop is one training step, by its name."""
    names = {f.name for e in step.events if (f := file.function_of(e.node)) is not None}
    return any(_STEP.search(name) for name in names)


def _has_no_further_condition(scheduler: Event, scaler: Event) -> bool:
    """Return whether every condition of the scheduler's step is also one of the scaler's step."""
    return all(
        (text, truth) in scaler.conditions or "scheduler" in text or text == AMP_IS_ON
        for text, truth in scheduler.conditions
    )
