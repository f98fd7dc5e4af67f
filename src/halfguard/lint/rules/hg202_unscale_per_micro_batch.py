"""Gradients are unscaled in every micro-batch, but stepped in some.

## What it does
Finds `scaler.unscale_` outside the condition, or inside a loop, that `scaler.step` is not in.

## Why is this bad?
The second call before `update()` raises "unscale_() has already been called on this optimizer since the
last update()". Gradients that were unscaled also cannot be added to those of the next micro-batch, which
are scaled.

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

from halfguard.lint.conditions import is_schedule
from halfguard.lint.event import Event
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta
from halfguard.lint.steps import Step

META = Meta(
    code="HG202",
    name="unscale-per-micro-batch",
    cure="Unscale once, directly before clipping and stepping, under the same condition as the step.",
    words=("unscale_",),
    severity="error",
)


def check(module: Model) -> Iterator[Match]:
    """Find unscaling that happens more often than stepping."""
    for step in module.steps:
        steps = step.of("scaler_step")
        for unscale in step.of("unscale"):
            mine = [s for s in steps if s.target == unscale.target and not s.excludes(unscale)]
            if mine and all(_is_rarer(step, s, unscale) for s in mine):
                message = (
                    "unscale_ runs in every micro-batch, and the step does not: it will raise."
                )
                yield match_at(unscale.node, message)


def _is_rarer(step: Step, applied: Event, unscale: Event) -> bool:
    """Whether a step happens less often than an unscaling: more conditions, or fewer loops."""
    extra = [t for t in applied.tests if t not in unscale.tests]
    if any(is_schedule(test) for test in extra):
        return True
    inner = step.inner_loops(unscale)
    return bool(inner) and not any(loop in applied.loops for loop in inner) and _repeats(inner[-1])


def _repeats(loop: ast.stmt) -> bool:
    """Whether a loop goes over micro-batches, not over the optimizers themselves."""
    header = loop.target if isinstance(loop, ast.For) else None
    text = ast.unparse(header).lower() if header is not None else ""
    return "opt" not in text
