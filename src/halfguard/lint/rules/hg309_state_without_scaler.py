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
import re
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, has_keyword, name_of, receiver, string
from halfguard.lint.match import Edit, Fix, Match, Span, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta
from halfguard.lint.syntax_tree import Function

META = Meta(
    code="HG309",
    name="state-without-scaler",
    cure='Add "scaler": scaler.state_dict() to the checkpoint, and load it on resume.',
    contains=("GradScaler",),
    fix="unsafe",
)
_CHECKPOINT = re.compile(r"save_?(\w+_)?(checkpoint|ckpt|state|training)", re.IGNORECASE)


def check(file: PythonFile) -> Iterator[Match]:
    """Find checkpoints without the scaler, each once."""
    scalers = sorted(file.roles.assigned_scalers)
    if not scalers or "scaler.state_dict" in file.source.text.lower():
        return
    seen: set[ast.AST] = set()
    for call in _saves(file):
        if not any(_is_available(file, name, call) for name in scalers):
            continue
        states = [
            s for a in call.args if isinstance(s := file.assigned_value(a), ast.Dict | ast.Call)
        ]
        state = next((s for s in states if _has_optimizer(file, s)), None)
        if state is None and not _passes_optimizer(file, call):
            continue
        # A helper saves several models of one training; one report is enough for all of them.
        saved = state or file.function_of(call) or file.root
        if saved in seen:
            continue
        seen.add(saved)
        fix = _fix(file, state, scalers) if isinstance(state, ast.Dict) else None
        yield match_at(call, "This checkpoint contains the optimizer but not the loss scale.", fix)


def _saves(file: PythonFile) -> Iterator[ast.Call]:
    """Yield ``torch.save(...)`` and calls of helpers that save, such as ``save_checkpoint(...)``."""
    for call in file.calls("save"):
        if file.full_name(call.func) == "torch.save":
            yield call
    for call in file.nodes(ast.Call):
        name = called_name(call)
        if name != "save" and "save" in name and call.args:
            yield call


def _passes_optimizer(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a helper of another file gets the optimizer to save, and not the scaler."""
    if not _CHECKPOINT.search(called_name(call)) or file.local_function(call) is not None:
        return False
    given = [*call.args, *(k.value for k in call.keywords)]
    names = [name_of(a).lower() for a in given]
    if any("scaler" in n or "amp" in n for n in names) or has_keyword(call, "scaler"):
        return False
    return any(file.roles.is_optimizer(a) for a in given)


def _is_available(file: PythonFile, name: str, call: ast.Call) -> bool:
    """Return whether the scaler is accessible where the checkpoint is saved, or where that is called."""
    here = file.function_of(call)
    places = {here} | {file.function_of(c) for c in _calls_of(file, here)}
    shared = name.startswith("self.") and file.class_of(call) is not None
    return shared or any(a.function is None or a.function in places for a in file.assignments[name])


def _calls_of(file: PythonFile, function: Function | None) -> list[ast.Call]:
    if function is None:
        return []
    return [c for c in file.calls(function.name) if file.local_function(c) is function]


def _has_optimizer(file: PythonFile, state: ast.Dict | ast.Call) -> bool:
    """Return whether a dictionary, or a call of ``dict``, holds an optimizer and no scaler."""
    if isinstance(state, ast.Call):
        if called_name(state) != "dict" or state.args:
            return False
        keys, values = [k.arg for k in state.keywords], [k.value for k in state.keywords]
    else:
        keys, values = [string(key) if key else None for key in state.keys], state.values
        if any(key is None for key in state.keys):
            return False  # ** may add the scaler
    if any(key is None and isinstance(state, ast.Call) for key in keys):
        return False
    if any("scaler" in (key or "").lower() for key in keys):
        return False
    return any(
        isinstance(v, ast.Call)
        and called_name(v) == "state_dict"
        and file.roles.is_optimizer(receiver(v))
        for value in values
        for v in ast.walk(value)
    )


def _fix(file: PythonFile, state: ast.Dict, scalers: list[str]) -> Fix | None:
    if len(scalers) != 1 or not state.values:
        return None
    name, function = scalers[0], file.function_of(state)
    here = [a.function for a in file.assignments[name]]
    if not name.startswith("self.") and None not in here and function not in here:
        return None
    if any(not isinstance(a.value, ast.Call) for a in file.assignments[name]):
        return None  # it may be None
    end = Span.after(state.values[-1])
    return Fix("unsafe", (Edit(end, f', "scaler": {name}.state_dict()'),))
