"""Gradients are clipped while they are still scaled.

## What it does
Finds `clip_grad_norm_` and `clip_grad_value_` between a scaled backward pass and `scaler.step`, without
`scaler.unscale_` before them.

## Why is this bad?
The norm that is compared with the limit is 65,536 times too large, so every step is clipped, and
`scaler.step` divides by the scale afterwards: with `max_norm=1.0` the applied norm was 1.5e-5.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x), y)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
```

## Use instead
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
```

## Fix safety
Safe: puts `scaler.unscale_(optimizer)` on the line above. `scaler.step` then knows that it is done.

## References
lightning#9330, lightning#9599.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import insert_before
from halfguard.lint.event import Event
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta
from halfguard.lint.steps import Step

META = Meta(
    code="HG201",
    name="clip-before-unscale",
    cure="Call scaler.unscale_(optimizer) before clipping.",
    words=("clip_grad",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find clipping of scaled gradients."""
    for step in module.steps:
        for clip in step.of("clip"):
            applied = _step_after(step, clip)
            if not step.before(clip, "scaled_backward") or applied is None:
                continue
            if not step.before(clip, "unscale"):
                message = (
                    "The gradients are still multiplied by the loss scale when they are clipped."
                )
                yield match_at(clip.node, message, _fix(module, clip, applied))


def _step_after(step: Step, clip: Event) -> Event | None:
    later = step.events[step.events.index(clip) :]
    return next((e for e in later if e.kind == "scaler_step" and not e.excludes(clip)), None)


def _fix(module: Model, clip: Event, applied: Event) -> Fix | None:
    statement = module.statement_of(clip.node)
    same = module.function_of(clip.node) is module.function_of(applied.node)
    if not isinstance(statement, ast.Expr | ast.Assign) or not same or not applied.target:
        return None
    if not isinstance(applied.node, ast.Call):
        return None
    owner = module.text(applied.node.func).rpartition(".")[0]
    text = f"{owner}.unscale_({module.text(applied.node.args[0])})"
    edit = insert_before(module, statement, text)
    return Fix("safe", (edit,)) if edit else None
