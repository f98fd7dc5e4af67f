"""A scaler is used on a model whose parameters are half.

## What it does
Finds `model.half()`, `model.to(torch.float16)` or loading with a half dtype where the same file steps the
optimizer through a gradient scaler, or sets `fp16=True` in `TrainingArguments`.

## Why is this bad?
The scaler refuses: "Attempting to unscale FP16 gradients." It is not broken. Mixed precision keeps
parameters in float32 and lets autocast choose half for the operations.

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

## References
peft#1336, huggingface/diffusers#6119. For half weights there is `halfguard.MasterWeights`.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, boolean
from halfguard.lint.rule import Meta
from halfguard.lint.weights import half_models_of

META = Meta(
    code="HG401",
    name="scaler-with-half-parameters",
    cure="Keep trainable parameters in float32, or train half weights with halfguard.MasterWeights.",
    words=("half(", "float16", "torch.half"),
    also=("step(", "TrainingArguments", "SFTConfig"),
    severity="error",
)


def check(module: Model) -> Iterator[Match]:
    """Find half models that a scaler will refuse."""
    places = {
        module.function_of(event.node)
        for step in module.steps
        if step.has("scaler_step")
        for event in step.events
    }
    places |= {
        module.function_of(call)
        for call in module.calls("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")
        if boolean(argument(call, -1, "fp16")) is True
    }
    if places and not module.imports("peft"):
        for call in half_models_of(module, places):
            yield match_at(call, "The scaler refuses parameters in half: it cannot unscale them.")
