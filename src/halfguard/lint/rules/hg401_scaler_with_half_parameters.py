"""A scaler is used with a model whose parameters are float16.

## What it does
Finds `model.half()`, `model.to(torch.float16)` or loading with a float16 dtype, if the same file steps the
optimizer through a gradient scaler or sets `fp16=True` in `TrainingArguments`. peft makes adapters float32.
So its models are reported only with `modules_to_save`, which it leaves in float16, or with
`autocast_adapter_dtype=False`.

## Why is this bad?
The scaler raises "Attempting to unscale FP16 gradients." This is intended. Mixed precision keeps parameters
in float32, and autocast chooses float16 for the operations.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    model = model.half()
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
```

## Use instead
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
```

## Fix safety
Unsafe: the model stays in float32 and needs twice the memory. For a peft model,
`halfguard.upcast_trainable(model)` is inserted: only what is trained becomes float32.

## References
peft#1336, huggingface/diffusers#6119. For float16 weights, use `halfguard.MasterWeights`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, name_of
from halfguard.lint.half_weights import find_trained_half_models, keep_full
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, insert_after, make_fix

META = Meta(
    code="HG401",
    name="scaler-with-half-parameters",
    cure="Keep trainable parameters in float32, or train float16 weights with halfguard.MasterWeights.",
    contains=("half(", "float16", "torch.half"),
    also_contains=("step(", "TrainingArguments", "SFTConfig"),
    severity="error",
    fix="unsafe",
)
# Trainable parameters are cast back, or have float32 copies.
_TRAINED_IN_FULL = re.compile(
    r"MasterWeights|upcast_trainable|cast_training_params|\bp(aram)?\.data\s*=\s*p(aram)?\.data\.float"
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 models that are trained with a scaler."""
    if _TRAINED_IN_FULL.search(file.source.text):
        return
    with_peft = file.imports("peft")
    if with_peft and not _peft_trains_half(file):
        return
    message = "The scaler raises on float16 parameters: it cannot unscale their gradients."
    for call in find_trained_half_models(file, "scaler_step", fp16=True):
        fix = _upcast_trained(file) if with_peft else keep_full(file, call)
        yield match_at(call, message, fix)


def _peft_trains_half(file: PythonFile) -> bool:
    """Return whether peft leaves trained parameters in the dtype of the base."""
    kept = (argument(call, -1, "modules_to_save") for call in file.calls("LoraConfig"))
    if any(isinstance(value, ast.List | ast.Tuple) and value.elts for value in kept):
        return True
    return any(
        boolean(argument(call, -1, "autocast_adapter_dtype")) is False
        for call in file.calls("get_peft_model")
    )


def _upcast_trained(file: PythonFile) -> Fix | None:
    """Convert what is trained to float32, below the one statement that adds the adapters."""
    statements = [file.statement_of(call) for call in file.calls("get_peft_model")]
    if len(statements) != 1 or not isinstance(statement := statements[0], ast.Assign):
        return None
    name = name_of(statement.targets[0])
    if not name or len(statement.targets) > 1:
        return None
    text = f"halfguard.upcast_trainable({name})"
    return make_fix("unsafe", insert_after(file, statement, text), imports=("halfguard",))
