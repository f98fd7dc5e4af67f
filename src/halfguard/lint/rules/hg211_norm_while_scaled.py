"""A gradient norm is read while the gradients are still scaled.

## What it does
Finds a norm of gradients between `scaler.scale(loss).backward()` and `scaler.step`, without `unscale_` before
it. HG201 finds clipping at the same place.

## Why is this bad?
The gradients are multiplied by the loss scale, 65,536 at first. A logged norm is that much too large, and it
halves or doubles whenever the scale changes. A limit on it never has the intended effect.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        scaler.scale(loss_fn(model(x), y)).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        print(norm)
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
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        print(norm)
        scaler.step(optimizer)
        scaler.update()
```

## References
lightning#9330; `halfguard.Guard` returns the unscaled norm of every step.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG211",
    name="norm-while-scaled",
    cure="Call scaler.unscale_(optimizer) before the norm is computed.",
    contains=("norm",),
    also_contains=("caler",),
    severity="error",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find norms of scaled gradients."""
    for step in file.steps:
        for norm in step.find("gradient_norm"):
            scaled = step.before(norm, "scaled_backward")
            if not scaled or step.before(norm, "unscale"):
                continue
            if any(e.kind == "scaler_step" for e in step.between(scaled[0], norm)):
                continue  # the step has unscaled them
            later = step.events[step.events.index(norm) :]
            if any(e.kind == "scaler_step" and not e.excludes(norm) for e in later):
                yield match_at(norm.node, "These gradients are still multiplied by the loss scale.")
