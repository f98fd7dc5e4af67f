"""A model is trained under float16 autocast without a gradient scaler.

## What it does
Finds a backward pass in a function that uses float16 autocast, in a file without a gradient scaler.

## Why is this bad?
Gradients below 2.98e-8 are zero in float16. Without a loss scale they are lost without an error: the loss
decreases more slowly, or not at all. bfloat16 needs no scaler.

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
from halfguard.lint.match import Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta
from halfguard.lint.syntax_tree import Function

META = Meta(
    code="HG207",
    name="fp16-without-scaler",
    cure="Use torch.amp.GradScaler or halfguard.GradScaler, or autocast to bfloat16.",
    contains=("autocast",),
    also_contains=("backward",),
    severity="error",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 training without a scaler."""
    if file.roles.has_scaler or file.roles.uses_scaling_framework or "caler" in file.source.text:
        return
    regions: dict[Function | None, list[tuple[ast.AST, Autocast]]] = defaultdict(list)
    for node, region in file.autocast.by_node.items():
        if region.is_half and not file.is_inference(region.call):
            regions[file.function_of(node)].append((node, region))
    for step in file.steps:
        if not step.has("optimizer_step") or not step.has("backward"):
            continue
        for function in {file.function_of(event.node) for event in step.events}:
            for node, region in regions.get(function, ()):
                if step.loop is None or step.loop in file.ancestors(node):
                    message = "float16 autocast without a loss scale: small gradients become zero."
                    yield match_at(region.call, message)
