"""`scaler.update` is called twice without a step between, or before all optimizers have stepped.

## What it does
Finds a second `update()` with no `scaler.step` after the first, and an `update()` between scaling gradients
and the `scaler.step` that uses them.

## Why is this bad?
Without a step between, the second call raises "No inf checks were recorded prior to update". With a step,
gradients that were multiplied by the old scale are divided by the new one. Whenever the scale changes, that
optimizer takes a step of double or half the size.

## Example
```py
import torch

def train(loader, net_d, net_g, opt_d, opt_g):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        scaler.scale(net_d(x)).backward()
        scaler.scale(net_g(x)).backward()
        scaler.step(opt_d)
        scaler.update()
        scaler.step(opt_g)
        scaler.update()
```

## Use instead
```py
import torch

def train(loader, net_d, net_g, opt_d, opt_g):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        scaler.scale(net_d(x)).backward()
        scaler.scale(net_g(x)).backward()
        scaler.step(opt_d)
        scaler.step(opt_g)
        scaler.update()
```

## Fix safety
Safe: removes the wrong call, if it is a statement of its own.

## References
neosr#9.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from halfguard.lint.edits import make_fix, remove
from halfguard.lint.event import Event
from halfguard.lint.match import Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

META = Meta(
    code="HG204",
    name="update-twice",
    cure="Call update() once per iteration, after the last step.",
    contains=("caler",),
    severity="error",
    fix="safe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find repeated updates, and updates between scaling and stepping."""
    for step in file.steps:
        updates = step.find("scaler_update")
        for first, second in itertools.pairwise(updates):
            if first.excludes(second) or first.owner != second.owner or first.loops != second.loops:
                continue
            if first.node is second.node:
                continue
            kinds = {event.kind for event in step.between(first, second)}
            if not kinds & {"scaler_step", "unscale"} and _same_condition(first, second):
                message = "update() is called again without a step since the last update()."
                yield _match(file, second, message)
                continue
            uses_old_scale = "scaler_step" in kinds and "scaled_backward" not in kinds
            if uses_old_scale and step.before(first, "scaled_backward"):
                message = "update() changes the scale before all gradients have been unscaled."
                yield _match(file, first, message)


def _same_condition(first: Event, second: Event) -> bool:
    """Return whether the second always runs after the first: it has no further condition."""
    return set(second.conditions) <= set(first.conditions)


def _match(file: PythonFile, event: Event, message: str) -> Match:
    statement = file.statement_of(event.node)
    edit = remove(file, statement) if isinstance(statement, ast.Expr) else None
    return match_at(event.node, message, make_fix("safe", edit))
