"""Float16 weights are trained without float32 copies.

## What it does
Finds a model that is cast to float16, in a file that trains it with a plain backward pass and optimizer step,
or with a `Trainer` whose `fp16` is off. In a project that converts weights to float16, also finds a scaler
that exists only for `precision == "amp"`: with `"fp16"` the weights are trained without one.

Nothing is reported if updates may be kept: if the file mentions float32 copies ("master"), a cast back, Kahan
sums or stochastic rounding, has an optimizer of its own, or a high learning rate (SGD from 0.01, Adam from
0.002 with an eps that is not 0 in float16). `hg.doctor` measures the updates themselves (HD104).

## Why is this bad?
In float16, 1 - 1e-4 is 1: every update below 2**-11 of its weight is lost, without an error. The loss stops
decreasing, or evaluation is NaN while training shows 0.0.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    model = model.half()
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
```

## Use instead
```py
import torch
import halfguard as hg

def train(model, optimizer, loader, loss_fn):
    guard = hg.Guard(model, optimizer, config="native_fp16")
    for batch in loader:
        guard.step(loss_fn, batch)
```

## Fix safety
Unsafe: the model stays in float32 and needs twice the memory.

## References
TinyLlama#32; `halfguard explain 1-1e-4`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import name_of, string
from halfguard.lint.half_weights import find_trained_half_models, keep_full, may_keep_updates
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG402",
    name="half-weights-trained",
    cure="Keep weights in float32 and use autocast, or add float32 copies: halfguard.MasterWeights.",
    contains=("half(", "float16", "torch.half", '"amp"', "'amp'"),
    also_contains=("step(", "TrainingArguments", "SFTConfig", '"amp"', "'amp'"),
    severity="error",
    fix="unsafe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 models that are trained without a scaler."""
    if file.roles.has_scaler:
        yield from _check_choice(file)
        return
    if may_keep_updates(file):
        return
    for call in find_trained_half_models(file, "optimizer_step", "backward", fp16=False):
        message = "float16 weights lose small updates: 1 - 1e-4 is 1 in float16."
        yield match_at(call, message, _fix(file, call))


def _check_choice(file: PythonFile) -> Iterator[Match]:
    """Find scalers that only one of several precisions gets, if another one trains float16 weights."""
    if not (file.project.half_weights and file.project.mixed):
        return
    for node in file.nodes(ast.Compare):
        is_amp = string(node.comparators[0]) == "amp" and isinstance(node.ops[0], ast.Eq)
        if is_amp and name_of(node.left).endswith("precision") and _makes_scaler(file, node):
            message = 'Only "amp" gets a scaler: float16 weights are trained without one.'
            yield match_at(node, message)


def _makes_scaler(file: PythonFile, test: ast.Compare) -> bool:
    """Return whether a scaler is constructed if a test is true."""
    parent = file.parents.get(test)
    if isinstance(parent, ast.If | ast.IfExp):
        return any(call in ast.walk(parent) for call in file.roles.constructed_scalers)
    return isinstance(parent, ast.Assign) and "scaler" in name_of(parent.targets[0])


def _fix(file: PythonFile, call: ast.Call) -> Fix | None:
    """Keep the weights in float32, unless inputs are cast to float16 to match them."""
    casts_inputs = any(other is not call for other in file.calls("half"))
    return None if casts_inputs else keep_full(file, call)
