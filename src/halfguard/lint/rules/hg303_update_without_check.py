"""`scaler.update()` is called where no inf check was made.

## What it does
Finds `update()` on a path that has neither `unscale_` nor `scaler.step` before it.

## Why is this bad?
It raises "No inf checks were recorded prior to update". This is what people write when they skip a step by
hand and want the scale to fall.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        scaler.scale(loss_fn(model(x), y)).backward()
        if any(p.grad.isinf().any() for p in model.parameters()):
            scaler.update()
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
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
```

## References
`scaler.step` makes that check itself, on the device, and skips.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import last_name
from halfguard.lint.rule import Meta

META = Meta(
    code="HG303",
    name="update-without-check",
    cure="Leave the check and the skip to scaler.step, or call scaler.unscale_(optimizer) first.",
    words=("caler",),
    severity="error",
)


def check(module: Model) -> Iterator[Match]:
    """Find updates that have nothing to go by."""
    for step in module.steps:
        if not step.has("scaler_step"):
            continue
        for update in step.of("scaler_update"):
            call = update.node
            if not isinstance(call, ast.Call) or call.args or call.keywords:
                continue  # update(new_scale) needs no check
            if last_name(call) != "update" or not step.before(update, "scaled_backward"):
                continue
            if not step.before(update, "scaler_step", "unscale"):
                yield match_at(call, "update() raises here: neither unscale_ nor step has run.")
