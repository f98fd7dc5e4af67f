"""`scaler.update()` is called without an inf check before it.

## What it does
Finds `update()` on a path without `unscale_` or `scaler.step` before it, also if the step runs only every few
micro-batches and the update in each of them.

## Why is this bad?
It raises "No inf checks were recorded prior to update". It is usually written to skip a step by hand and
decrease the scale.

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
`scaler.step` does this check on the device and skips the step.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import called_name
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.steps import Event

META = Meta(
    code="HG303",
    name="update-without-check",
    cure="Let scaler.step check and skip, or call scaler.unscale_(optimizer) first.",
    contains=("caler",),
    also_contains=(".step(",),
    severity="error",
)
_ACCUMULATES = re.compile(r"%|accum")


def check(file: PythonFile) -> Iterator[Match]:
    """Find updates without an inf check."""
    for step in file.steps:
        if not step.has("scaler_step"):
            continue
        for update in step.find("scaler_update"):
            call = update.node
            if not isinstance(call, ast.Call) or call.args or call.keywords:
                continue  # update(new_scale) needs no check
            if called_name(call) != "update" or not step.before(update, "scaled_backward"):
                continue
            checks = step.before(update, "scaler_step", "unscale")
            if not checks:
                yield match_at(call, "update() raises here: neither unscale_ nor step has run.")
            elif all(_is_rarer(check, update) for check in checks):
                yield match_at(call, "update() raises in a micro-batch without a step: put it under "
                               "the step's condition.")  # fmt: skip


def _is_rarer(check: Event, update: Event) -> bool:
    """Return whether an inf check depends on a schedule of accumulation that the update does not."""
    return any(
        _ACCUMULATES.search(text) and (text, truth) not in update.conditions
        for text, truth in check.conditions
    )
