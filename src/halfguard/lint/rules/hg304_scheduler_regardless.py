"""The scheduler steps whether or not the optimizer did.

## What it does
Finds `scheduler.step()` in every iteration, beside `scaler.step`, without a condition.

## Why is this bad?
When the scaler skips, the learning rate moves and the weights do not. During warm-up the first updates are
lost that way, and torch warns that `lr_scheduler.step()` came before `optimizer.step()`.

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

from collections.abc import Iterator

from halfguard.lint.event import Event
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta
from halfguard.lint.steps import Step

META = Meta(
    code="HG304",
    name="scheduler-regardless",
    cure="Step the scheduler only when the optimizer stepped; halfguard.Guard knows which.",
    words=("caler",),
)


def check(module: Model) -> Iterator[Match]:
    """Find schedulers that no outcome holds back."""
    for step in module.steps:
        for moved in step.of("scheduler_step"):
            applied = step.before(moved, "scaler_step")
            if applied and step.has("scaled_backward") and _as_often(step, moved, applied[0]):
                message = f"{moved.subject} moves on even when {applied[0].subject} skips the step."
                yield match_at(moved.node, message)


def _as_often(step: Step, moved: Event, applied: Event) -> bool:
    """Whether nothing but what guards the step guards the scheduler."""
    return step.loop is not None and all(
        guard in applied.guards or "scheduler" in guard[0] or guard[0] == "mixed precision is on"
        for guard in moved.guards
    )
