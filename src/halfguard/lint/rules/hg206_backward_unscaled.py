"""A loss is not scaled, and its gradients are unscaled all the same.

## What it does
Finds `loss.backward()` before `scaler.step(optimizer)`, with no scaled backward pass on that path.

## Why is this bad?
`scaler.step` divides gradients by the scale. Those that were never multiplied shrink 65,536 times: small
ones vanish, and the model hardly learns.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
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
        loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
```

## Fix safety
Safe: scales the loss for the backward pass, and leaves the loss itself as it was.

## References
Open-Rig3R#35.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import replace
from halfguard.lint.event import Event
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG206",
    name="backward-unscaled",
    cure="Call scaler.scale(loss).backward().",
    words=("caler",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find plain backward passes that a scaler steps on."""
    for step in module.steps:
        for applied in step.of("scaler_step"):
            before = step.before(applied, "backward", "scaled_backward", "framework_backward")
            if not before or any(event.kind != "backward" for event in before):
                continue
            event = before[0]
            message = f"This loss is not scaled, and {applied.subject}.step divides by the scale."
            yield match_at(event.node, message, _fix(module, event, applied))


def _fix(module: Model, event: Event, applied: Event) -> Fix | None:
    same = module.function_of(event.node) is module.function_of(applied.node)
    if not same or not isinstance(event.node, ast.Call) or not isinstance(applied.node, ast.Call):
        return None
    loss = receiver(event.node)
    if loss is None:
        return None
    scaler = module.text(applied.node.func).rpartition(".")[0]
    edit = replace(module, loss, f"{scaler}.scale({module.text(loss)})")
    return Fix("safe", (edit,)) if edit else None
