"""`scaler.update` is called twice with no step, or with a stale scale, between.

## What it does
Finds a second `update()` with no `scaler.step` since the first, and a `scaler.step` after an `update()` for
gradients that were scaled before it.

## Why is this bad?
Without a step between, the second call raises "No inf checks were recorded prior to update". With one,
gradients that were multiplied by the old scale are divided by the new one: whenever it changes, that
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
Safe: takes away the call that must not be there, where it is a statement of its own.

## References
neosr#9.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from halfguard.lint.edits import remove
from halfguard.lint.event import Event
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta

META = Meta(
    code="HG204",
    name="update-twice",
    cure="Call update() once an iteration, after the last step.",
    words=("caler",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find updates that repeat, or that come between scaling and stepping."""
    for step in module.steps:
        updates = step.of("scaler_update")
        for first, second in itertools.pairwise(updates):
            if (
                first.excludes(second)
                or first.subject != second.subject
                or first.loops != second.loops
            ):
                continue
            if first.node is second.node:
                continue
            between = list(step.between(first, second))
            kinds = {event.kind for event in between}
            if not kinds & {"scaler_step", "unscale"} and _same_condition(first, second):
                yield _match(
                    module, second, "update() is called again with no step since the last."
                )
            elif (
                "scaler_step" in kinds
                and "scaled_backward" not in kinds
                and step.before(first, "scaled_backward")
            ):
                message = "update() changes the scale while gradients still wait to be unscaled."
                yield _match(module, first, message)


def _same_condition(first: Event, second: Event) -> bool:
    """Whether the second surely follows the first: it stands under no further condition."""
    return set(second.guards) <= set(first.guards)


def _match(module: Model, event: Event, message: str) -> Match:
    statement = module.statement_of(event.node)
    edit = remove(module, statement) if isinstance(statement, ast.Expr) else None
    return match_at(event.node, message, Fix("safe", (edit,)) if edit else None)
