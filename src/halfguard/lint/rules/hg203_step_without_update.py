"""`scaler.step` is called and `scaler.update` is not.

## What it does
Finds training steps that call `scaler.step(optimizer)` in a file that never calls `update` on the scaler.

## Why is this bad?
The second step raises "step() has already been called since the last update()". Where it does not, the
scale can never fall, and after the first overflow every step is skipped.

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
Safe: adds `scaler.update()` on the line below the only step.

## References
pytorch#36601.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import insert_after
from halfguard.lint.event import Event
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta

META = Meta(
    code="HG203",
    name="step-without-update",
    cure="Call scaler.update() once, after all steps of the iteration.",
    words=("caler",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find steps in files without an update."""
    # "update" on anything that may be the scaler under another name is enough to stay silent.
    if any(not call.args and not call.keywords for call in module.calls("update")):
        return
    for step in module.steps:
        steps = step.of("scaler_step") if step.has("scaled_backward") else []
        for event in steps:
            fix = _fix(module, event) if len(steps) == 1 else None
            yield match_at(event.node, f"{event.subject}.update() is never called.", fix)


def _fix(module: Model, event: Event) -> Fix | None:
    statement = module.statement_of(event.node)
    if not isinstance(statement, ast.Expr | ast.Assign) or not isinstance(event.node, ast.Call):
        return None
    owner = module.text(event.node.func).rpartition(".")[0]
    edit = insert_after(module, statement, f"{owner}.update()")
    return Fix("safe", (edit,)) if edit else None
