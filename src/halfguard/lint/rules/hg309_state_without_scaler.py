"""A checkpoint holds the optimizer and not the scaler.

## What it does
Finds `torch.save` of a dictionary with the optimizer's state, without the scaler's, in a file that makes a
scaler.

## Why is this bad?
After a resume the scale starts at 65,536 again. A run that had settled at 512 overflows and skips its first
steps, or shows a spike that nobody can explain.

## Example
```py
import torch

scaler = torch.amp.GradScaler("cuda")

def save(model, optimizer, path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
```

## Use instead
```py
import torch

scaler = torch.amp.GradScaler("cuda")

def save(model, optimizer, path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict()}, path)
```

## Fix safety
Unsafe: it adds a key to the file. Load it with `scaler.load_state_dict` as well.

## References
huggingface/transformers#34053, ultralytics#22189, composer#1376.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.match import Edit, Fix, Match, Span, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import last_name, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG309",
    name="state-without-scaler",
    cure='Add "scaler": scaler.state_dict() to the checkpoint, and load it on resume.',
    words=("GradScaler",),
    fix="unsafe",
)


def check(module: Model) -> Iterator[Match]:
    """Find checkpoints without the scaler."""
    made = sorted(
        name for name, bound in module.bindings.items()
        if any(isinstance(b.value, ast.Call) and last_name(b.value) == "GradScaler" for b in bound)
    )  # fmt: skip
    if not made or "scaler.state_dict" in module.source.text.lower():
        return
    for call in module.calls("save"):
        if module.dotted(call.func) != "torch.save" or not call.args:
            continue
        state = call.args[0]
        if isinstance(state, ast.Name):
            bound = module.latest(state)
            state = bound.value if bound and bound.value is not None else state
        near = [name for name in made if _reaches(module, name, call)]
        if near and isinstance(state, ast.Dict) and _has_optimizer(module, state):
            yield match_at(call, "This checkpoint holds the optimizer, but not the loss scale.",
                           _fix(module, state, made))  # fmt: skip


def _reaches(module: Model, name: str, call: ast.Call) -> bool:
    """Whether the scaler is known where the checkpoint is written."""
    here = module.function_of(call)
    for bound in module.bindings[name]:
        shared = name.startswith("self.") and module.class_of(call) is not None
        if bound.function in {None, here} or shared:
            return True
    return False


def _has_optimizer(module: Model, state: ast.Dict) -> bool:
    if any(name is None for name in state.keys):
        return False  # ** may bring the scaler along
    return any(
        isinstance(v, ast.Call)
        and last_name(v) == "state_dict"
        and module.roles.is_optimizer(receiver(v))
        for v in state.values
    )


def _fix(module: Model, state: ast.Dict, made: list[str]) -> Fix | None:
    if len(made) != 1 or not state.values:
        return None
    name, function = made[0], module.function_of(state)
    here = [b.function for b in module.bindings[name]]
    if not name.startswith("self.") and None not in here and function not in here:
        return None
    last = state.values[-1]
    end = Span(last.end_lineno or 0, last.end_col_offset or 0, last.end_lineno or 0,
               last.end_col_offset or 0)  # fmt: skip
    return Fix("unsafe", (Edit(end, f', "scaler": {name}.state_dict()'),))
