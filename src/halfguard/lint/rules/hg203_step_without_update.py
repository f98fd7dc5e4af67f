"""`scaler.step` is called, but `scaler.update` is not.

## What it does
Finds training steps that call `scaler.step(optimizer)` in a file that never calls `update` on the scaler.

## Why is this bad?
The second step raises "step() has already been called since the last update()". If it does not raise, the
scale never decreases, and every step after the first overflow is skipped.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
```

## Use instead
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
```

## Fix safety
Safe: inserts `scaler.update()` on the line below, if the loop has only one step.

## References
pytorch#36601.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, receiver
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, insert_after, make_fix
from halfguard.lint.steps import Event

META = Meta(
    code="HG203",
    name="step-without-update",
    cure="Call scaler.update() once, after all steps of the iteration.",
    contains=("caler",),
    also_contains=(".step(",),
    severity="error",
    fix="safe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find steps in files without an update."""
    # Any object with an "update()" may be the scaler under another name; a scaler may be given a new scale.
    if any(_may_be_scaler(file, call) for call in file.calls("update")):
        return
    for step in file.steps:
        steps = step.find("scaler_step") if step.has("scaled_backward") else []
        for event in steps:
            if not isinstance(event.node, ast.Call) or called_name(event.node) != "step":
                continue  # a helper that also updates
            fix = _fix(file, event) if len(steps) == 1 else None
            yield match_at(event.node, f"{event.owner}.update() is never called.", fix)


def _may_be_scaler(file: PythonFile, call: ast.Call) -> bool:
    return not (call.args or call.keywords) or file.roles.is_scaler(receiver(call))


def _fix(file: PythonFile, event: Event) -> Fix | None:
    statement = file.statement_of(event.node)
    if not isinstance(statement, ast.Expr | ast.Assign) or not isinstance(event.node, ast.Call):
        return None
    owner = file.text(event.node.func).rpartition(".")[0]
    return make_fix("safe", insert_after(file, statement, f"{owner}.update()"))
