"""A checkpoint for a resume contains weights that were cast to float16.

## What it does
Finds a saved dictionary with the state of the optimizer and a model that is cast with `.half()`.

## Why is this bad?
The optimizer's state shows that training resumes from this file. The float32 weights lose 13 of their 24
bits, values above 65504 become infinite, and a moving average loses its latest updates at every resume. Save
float32 weights to resume from, and a float16 copy for inference apart.

## Example
```py
import copy
import torch

def save(model, optimizer, path):
    torch.save({"model": copy.deepcopy(model).half(), "optimizer": optimizer.state_dict()}, path)
```

## Use instead
```py
import copy
import torch

def save(model, optimizer, path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
```

## References
A resumed run does not continue the one that was stopped: see `halfguard.Guard.save`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.checkpoints import Entries, entries_of, find_saves, has_optimizer, saved_states
from halfguard.lint.expressions import called_name
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG311",
    name="half-weights-in-checkpoint",
    cure="Save float32 weights to resume from; save a float16 copy for inference apart.",
    contains=(".half()",),
    also_contains=("save",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 weights beside the state of an optimizer, once per dictionary."""
    if file.project.known and not file.project.resumes:
        return
    seen: set[ast.AST] = set()
    for call in find_saves(file):
        for state in saved_states(file, call):
            entries = entries_of(file, state, call)
            if state in seen or entries is None or not has_optimizer(file, entries):
                continue
            cast = _cast_to_half(entries)
            if cast is not None:
                seen.add(state)
                yield match_at(cast, "Training resumes from these weights, rounded to float16.")


def _cast_to_half(entries: Entries) -> ast.expr | None:
    """Return the first value of a dictionary that ends in ``.half()`` or ``.half().state_dict()``."""
    for _, value in entries:
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and called_name(node) == "half" and not node.args:
                return value
    return None
