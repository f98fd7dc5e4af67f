"""A checkpoint contains the optimizer but not the scaler.

## What it does
Finds `torch.save` of a dictionary with the state of the optimizer but not of the scaler, in a file that
constructs a scaler.

## Why is this bad?
After a resume the scale starts at 65,536 again. A run that had settled at 512 overflows and skips its first
steps, or shows an unexplained spike.

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
Unsafe: it adds a key to the checkpoint. Also load the key, with `scaler.load_state_dict`.

## References
huggingface/transformers#34053, ultralytics#22189, composer#1376.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, receiver
from halfguard.lint.match import Edit, Fix, Match, Span, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

META = Meta(
    code="HG309",
    name="state-without-scaler",
    cure='Add "scaler": scaler.state_dict() to the checkpoint, and load it on resume.',
    contains=("GradScaler",),
    fix="unsafe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find checkpoints without the scaler."""
    scalers = sorted(file.constructed("GradScaler"))
    if not scalers or "scaler.state_dict" in file.source.text.lower():
        return
    for call in file.calls("save"):
        if file.full_name(call.func) != "torch.save" or not call.args:
            continue
        state = file.assigned_value(call.args[0])
        is_available = any(_is_available(file, name, call) for name in scalers)
        if is_available and isinstance(state, ast.Dict) and _has_optimizer(file, state):
            yield match_at(call, "This checkpoint contains the optimizer but not the loss scale.",
                           _fix(file, state, scalers))  # fmt: skip


def _is_available(file: PythonFile, name: str, call: ast.Call) -> bool:
    """Return whether the scaler is accessible where the checkpoint is saved."""
    here = file.function_of(call)
    for assigned in file.assignments[name]:
        shared = name.startswith("self.") and file.class_of(call) is not None
        if assigned.function in {None, here} or shared:
            return True
    return False


def _has_optimizer(file: PythonFile, state: ast.Dict) -> bool:
    if any(name is None for name in state.keys):
        return False  # ** may add the scaler
    return any(
        isinstance(v, ast.Call)
        and called_name(v) == "state_dict"
        and file.roles.is_optimizer(receiver(v))
        for v in state.values
    )


def _fix(file: PythonFile, state: ast.Dict, scalers: list[str]) -> Fix | None:
    if len(scalers) != 1 or not state.values:
        return None
    name, function = scalers[0], file.function_of(state)
    here = [a.function for a in file.assignments[name]]
    if not name.startswith("self.") and None not in here and function not in here:
        return None
    end = Span.after(state.values[-1])
    return Fix("unsafe", (Edit(end, f', "scaler": {name}.state_dict()'),))
