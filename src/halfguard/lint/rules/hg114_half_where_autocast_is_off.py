"""A float16 value is used where autocast was turned off to compute in float32.

## What it does
Finds values that an autocast block has computed in float16, and that are used inside
`autocast(enabled=False)` without a cast.

## Why is this bad?
Turning autocast off does not cast anything: operations run in the dtype of their inputs. A loss that was
meant to be computed in float32 is computed in float16, with less protection than inside autocast.

## Example
```py
import torch

def loss_of(model, x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        scores = x @ model.weight
    with torch.autocast("cuda", enabled=False):
        return torch.exp(scores - y).sum()
```

## Use instead
```py
import torch

def loss_of(model, x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        scores = x @ model.weight
    with torch.autocast("cuda", enabled=False):
        return torch.exp(scores.float() - y).sum()
```

## References
pytorch documentation: Automatic Mixed Precision.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG114",
    name="half-where-autocast-is-off",
    cure="Cast the value first: x.float().",
    contains=("enabled=False", "autocast(False", "autocast_off"),
    also_contains=("autocast",),
    needs_half=True,
)
_CASTS = {"float", "double", "to", "type", "shape", "size", "device", "dtype", "detach", "item"}


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 names in blocks without autocast, each once per block."""
    seen: set[tuple[ast.AST, str]] = set()
    blocks = {node for node, region in file.autocast.by_node.items() if region.enabled is False}
    if not blocks:
        return
    for name in file.nodes(ast.Name):
        block = next((p for p in file.ancestors(name) if p in blocks), None)
        if block is None or not isinstance(name.ctx, ast.Load) or (block, name.id) in seen:
            continue
        assigned = file.last_assignment(name)
        if assigned is None or assigned.line >= getattr(block, "lineno", 0):
            continue
        if _is_computed_with(file, name) and file.precision(name) is Precision.HALF:
            seen.add((block, name.id))
            message = f"{name.id} is float16 here: turning autocast off does not cast it."
            yield match_at(name, message)


def _is_computed_with(file: PythonFile, name: ast.Name) -> bool:
    """Return whether a value is part of an operation, and not only cast, passed on or measured."""
    parent = file.parents.get(name)
    if isinstance(parent, ast.Attribute):
        call = file.parents.get(parent)
        is_method = isinstance(call, ast.Call) and call.func is parent
        return is_method and parent.attr not in _CASTS
    if isinstance(parent, ast.BinOp):
        return True
    return isinstance(parent, ast.Call) and file.is_torch_call(parent)
