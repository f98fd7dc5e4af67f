"""Adam divides by an eps that is zero in half.

## What it does
Finds Adam and its relatives on the parameters of a model that is half, with an eps of at most 2.98e-8 (the
default is 1e-8), and without `fused=True`.

## Why is this bad?
The second moment of a small gradient is 0 in half, and so is eps: the first step divides 0 by 0, and the
weights are NaN from then on.

## Example
```py
import torch

def build(model):
    model = model.half()
    return torch.optim.AdamW(model.parameters(), lr=1e-4)
```

## Use instead
```py
import torch

def build(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)  # float32 weights, and autocast
```

## References
pytorch#147437.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.halves import vanishes
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, boolean, has_keyword, key, receiver
from halfguard.lint.rule import Meta
from halfguard.lint.weights import half_models

META = Meta(
    code="HG403",
    name="adam-eps",
    cure="Keep weights in float32, or pass an eps that half can hold, such as 1e-4.",
    words=("Adam",),
    severity="error",
)


def check(module: Model) -> Iterator[Match]:
    """Find Adam on half models."""
    halves = {key(receiver(call) or call) for call in half_models(module)}
    halves |= {key(t) for call in half_models(module) for t in _targets(module, call)}
    for call in module.calls("Adam", "AdamW", "NAdam", "RAdam", "Adamax"):
        if not module.dotted(call.func).startswith("torch.optim") or not call.args:
            continue
        eps = argument(call, -1, "eps")
        lost = vanishes(module.constant(eps)) if eps else not has_keyword(call, "eps")
        fused = boolean(argument(call, -1, "fused")) is True
        if lost and not fused and _model_of(call.args[0]) in halves - {""}:
            yield match_at(call, "The eps of this optimizer is 0 in half: its first step is NaN.")


def _targets(module: Model, call: ast.Call) -> list[ast.expr]:
    parent = module.parents.get(call)
    return parent.targets if isinstance(parent, ast.Assign) else []


def _model_of(node: ast.expr) -> str:
    owner = receiver(node) if isinstance(node, ast.Call) else None
    return key(owner) if owner is not None else ""
