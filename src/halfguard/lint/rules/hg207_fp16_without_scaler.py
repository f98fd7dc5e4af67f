"""A model is trained under float16 autocast without a gradient scaler.

## What it does
Finds a backward pass in a function that uses float16 autocast, or calls one that does, in a file without a
gradient scaler. Files that change gradients by hand are left out, because the loss may be scaled by hand.
`hg.doctor` measures which gradients are lost (HD112).

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
import re
from collections import defaultdict
from collections.abc import Iterator

from halfguard.lint.autocast import Autocast
from halfguard.lint.expressions import argument, boolean, name_of, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.steps import Step
from halfguard.lint.syntax_tree import Function, parameter_default, parameter_names

META = Meta(
    code="HG207",
    name="fp16-without-scaler",
    cure="Use torch.amp.GradScaler or halfguard.GradScaler, or autocast to bfloat16.",
    contains=("autocast",),
    also_contains=("backward",),
    severity="error",
)
_CHANGED_GRADIENTS = re.compile(
    r"\.grad\b[^\n]*(?:[/*]=|\bdiv|\bmul)|\.grad\s*=[^=]|_foreach_|loss_scale"
)
_MESSAGE = "float16 autocast without a loss scale: small gradients become zero."


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 training without a scaler."""
    if file.roles.has_scaler or file.roles.uses_scaling_framework or "caler" in file.source.text:
        return
    if _CHANGED_GRADIENTS.search(file.source.text):
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
                    yield match_at(region.call, _MESSAGE)
        for call in _calls_in(file, step):
            helper = file.local_function(call)
            if any(_is_on_for(file, node, call) for node, _ in regions.get(helper, ())):
                yield match_at(call, _MESSAGE)


def _calls_in(file: PythonFile, step: Step) -> Iterator[ast.Call]:
    """Yield the calls of this file's functions that compute the loss of a step: ``loss = loss_of(...)``."""
    losses = [e.node for e in step.find("backward") if isinstance(e.node, ast.Call)]
    for call in losses:
        made = file.assigned_value(receiver(call))
        if isinstance(made, ast.Call) and file.local_function(made) is not None:
            yield made


def _is_on_for(file: PythonFile, region: ast.AST, call: ast.Call) -> bool:
    """Return whether a call runs a region of its function that may depend on an argument: ``if amp:``."""
    function = file.function_of(region)
    names = [n for n in parameter_names(function) if n != "self"] if function else []
    for parent in file.ancestors(region):
        if isinstance(parent, ast.If) and function and name_of(parent.test) in names:
            name = name_of(parent.test)
            given = argument(call, names.index(name), name) or parameter_default(function, name)
            if boolean(given) is False:
                return False
    return True
