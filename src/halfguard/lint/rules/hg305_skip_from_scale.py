"""Whether a step was skipped is guessed from the loss scale.

## What it does
Finds comparisons of two `scaler.get_scale()` values.

## Why is this bad?
Growth changes the scale too, so `!=` calls a good step skipped. A scale that has reached its floor, or 0,
does not change any more, so `<` calls a skipped step good. And each `get_scale()` waits for the device.

## Example
```py
import torch

def step(scaler, optimizer):
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() < before
```

## Use instead
```py
import halfguard as hg

def step(guard: hg.Guard, loss_fn, batch):
    outcome = guard.step(loss_fn, batch)
    return not outcome.applied
```

## References
pytorch#67590, pytorch#152279, accelerate#1714.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import last_name
from halfguard.lint.rule import Meta

META = Meta(
    code="HG305",
    name="skip-from-scale",
    cure="Ask the guard: StepOutcome.applied says it, without a host sync.",
    words=("get_scale",),
)


def check(module: Model) -> Iterator[Match]:
    """Find comparisons of scales."""
    for node in module.nodes(ast.Compare):
        if len(node.ops) != 1 or not all(
            _is_scale(module, n) for n in (node.left, node.comparators[0])
        ):
            continue
        changed = isinstance(node.ops[0], ast.Eq | ast.NotEq)
        why = (
            "growth changes the scale as well" if changed
            else "a scale at its floor does not fall any more"
        )  # fmt: skip
        yield match_at(node, f"This does not tell whether the step was skipped: {why}.")


def _is_scale(module: Model, node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        bound = module.latest(node)
        node = bound.value if bound and bound.value is not None else node
    return isinstance(node, ast.Call) and last_name(node) == "get_scale"
