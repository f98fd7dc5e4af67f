"""A model is trained under float16 autocast, and no scaler is in sight.

## What it does
Finds a backward pass in a function that uses float16 autocast, in a file that knows no gradient scaler.

## Why is this bad?
Gradients below 2.98e-8 are zero in half. Without a loss scale they vanish silently: the loss goes down
more slowly, or not at all, and no error says why. bfloat16 needs no scaler.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
```

## Use instead
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
```

## References
Open-Rig3R#35.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from halfguard.lint.autocast import Autocast
from halfguard.lint.index import Function
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta

META = Meta(
    code="HG207",
    name="fp16-without-scaler",
    cure="Use torch.amp.GradScaler or halfguard.GradScaler, or autocast to bfloat16.",
    words=("autocast",),
    severity="error",
)


def check(module: Model) -> Iterator[Match]:
    """Find float16 training without a scaler."""
    if module.roles.has_scaler or module.roles.has_framework or "caler" in module.source.text:
        return
    regions: dict[Function | None, list[tuple[ast.AST, Autocast]]] = defaultdict(list)
    for node, region in module.regions.all.items():
        if region.is_half:
            regions[module.function_of(node)].append((node, region))
    for step in module.steps:
        if not step.has("optimizer_step") or not step.has("backward"):
            continue
        for function in {module.function_of(event.node) for event in step.events}:
            for node, region in regions.get(function, ()):
                if step.loop is None or step.loop in module.ancestors(node):
                    message = "float16 autocast without a loss scale: gradients vanish."
                    yield match_at(region.call, message)
