"""A skipped step is inferred from the loss scale.

## What it does
Finds two `scaler.get_scale()` values that are compared with `==` or `!=`.

## Why is this bad?
Growth also changes the scale, so `!=` reports a good step as skipped: one in 2,000 with torch's scaler. A
comparison with `<` is right until the scale is 0, and is not reported. Each `get_scale()` also waits for the
device.

## Example
```py
import torch

def step(scaler, optimizer):
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() != before
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

from halfguard.lint.expressions import called_name
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG305",
    name="skip-from-scale",
    cure="Use StepOutcome.applied of halfguard.Guard; it needs no host sync.",
    contains=("get_scale",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find comparisons of scales."""
    for node in file.nodes(ast.Compare):
        sides = (node.left, node.comparators[0])
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            continue
        if all(_is_scale(file, side) for side in sides):
            message = (
                "This does not show whether the step was skipped: growth changes the scale too."
            )
            yield match_at(node, message)


def _is_scale(file: PythonFile, node: ast.AST) -> bool:
    value = file.assigned_value(node)
    return isinstance(value, ast.Call) and called_name(value) == "get_scale"
