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
Safe: removes the wrong call, if it is a statement of its own, has no argument, and the other `update()`
always runs after it. Otherwise no fix is offered.

## References
neosr#9.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, make_fix, remove
from halfguard.lint.steps import Event, Step

META = Meta(
    code="HG204",
    name="update-twice",
    cure="Call update() once per iteration, after the last step.",
    contains=("caler",),
    also_contains=(".step(",),
    severity="error",
    fix="safe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find repeated updates, and updates between scaling and stepping."""
    for step in file.steps:
        for first, second in itertools.pairwise(step.find("scaler_update")):
            if first.excludes(second) or first.owner != second.owner or first.loops != second.loops:
                continue
            if first.node is second.node:
                continue
            between = list(step.between(first, second))
            kinds = {event.kind for event in between}
            if not kinds & {"scaler_step", "unscale"} and _always_follows(first, second):
                message = "update() is called again without a step since the last update()."
                yield match_at(second.node, message, _fix(file, second))
                continue
            if _uses_old_scale(step, first, between):
                message = "update() changes the scale before all gradients have been unscaled."
                leaves = kinds & {"continue", "return"}
                is_certain = _always_follows(first, second) and not leaves
                yield match_at(first.node, message, _fix(file, first) if is_certain else None)


def _uses_old_scale(step: Step, update: Event, between: list[Event]) -> bool:
    """Return whether an optimizer is stepped after an update with gradients that were scaled before it."""
    later = [e for e in between if e.kind in {"scaler_step", "unscale", "scaled_backward"}]
    if not later or later[0].kind == "scaled_backward":
        return False
    unscaled = {e.optimizer for e in step.before(update, "unscale")}
    return bool(step.before(update, "scaled_backward")) and later[0].optimizer not in unscaled


def _always_follows(first: Event, second: Event) -> bool:
    """Return whether the second always runs if the first does: it has no further condition."""
    return set(second.conditions) <= set(first.conditions)


def _fix(file: PythonFile, event: Event) -> Fix | None:
    """Remove an update, unless it sets a new scale."""
    statement = file.statement_of(event.node)
    if not isinstance(statement, ast.Expr) or not isinstance(event.node, ast.Call):
        return None
    if event.node.args or event.node.keywords:
        return None
    return make_fix("safe", remove(file, statement))
