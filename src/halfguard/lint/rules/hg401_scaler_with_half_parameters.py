"""A scaler is used with a model whose parameters are float16.

## What it does
Finds `model.half()`, `model.to(torch.float16)` or loading with a float16 dtype, if the same file steps the
optimizer through a gradient scaler or sets `fp16=True` in `TrainingArguments`.

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
Unsafe: the model stays in float32 and needs twice the memory.

## References
peft#1336, huggingface/diffusers#6119. For float16 weights, use `halfguard.MasterWeights`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from halfguard.lint.half_weights import find_trained_half_models, keep_full
from halfguard.lint.match import Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

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
    if file.imports("peft") or _TRAINED_IN_FULL.search(file.source.text):
        return
    message = "The scaler raises on float16 parameters: it cannot unscale their gradients."
    for call in find_trained_half_models(file, "scaler_step", fp16=True):
        yield match_at(call, message, keep_full(file, call))
