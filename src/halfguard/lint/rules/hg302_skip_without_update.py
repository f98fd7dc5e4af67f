"""A step is skipped by hand without updating the scale.

## What it does
Finds `continue` after a scaled backward pass, on a check of the gradients, without `scaler.update()`. Other
checks are reported only after `unscale_`: a loss, for example, does not depend on the scale.

## Why is this bad?
The scale decreases only in `update()`. Without it, the same overflow repeats with every batch: in one
measured run 50 of 50 steps were skipped, compared with 12 of 50 if the scaler alone skipped. After
`unscale_`, the next call of `unscale_` also raises.

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
Safe after `unscale_`: inserts `scaler.update()` before the `continue`. Otherwise no fix is offered, because
`update()` without an inf check raises.

## References
huggingface/transformers#23935, pytorch#36601.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.conditions import is_gradient_check, is_health_check
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, insert_before, make_fix
from halfguard.lint.steps import Event, Step

META = Meta(
    code="HG302",
    name="skip-without-update",
    cure="Let scaler.step skip, or call scaler.update() before continue.",
    contains=("caler",),
    also_contains=(".step(",),
    severity="error",
    fix="safe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find skips that never decrease the scale."""
    for step in file.steps:
        if not step.has("scaler_step"):
            continue
        for skip in step.find("continue"):
            scaled = step.before(skip, "scaled_backward")
            if not scaled or not skip.tests or not is_health_check(file, skip.tests[-1]):
                continue
            if any(e.kind == "scaler_update" for e in step.between(scaled[0], skip)):
                continue
            if not step.before(skip, "unscale") and not is_gradient_check(file, skip.tests[-1]):
                continue
            fix = _fix(file, step, skip)
            yield match_at(skip.node, "This skips the step, but the scale never decreases.", fix)


def _fix(file: PythonFile, step: Step, skip: Event) -> Fix | None:
    unscaled = step.before(skip, "unscale")
    if not unscaled or not isinstance(skip.node, ast.stmt):
        return None
    node = unscaled[0].node
    if file.function_of(node) is not file.function_of(skip.node):
        return None
    if not isinstance(node, ast.Call):
        return None
    scaler = file.text(node.func).rpartition(".")[0]
    return make_fix("safe", insert_before(file, skip.node, f"{scaler}.update()"))
