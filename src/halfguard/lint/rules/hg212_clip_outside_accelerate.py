"""Gradients are clipped by torch while Accelerate still holds them scaled.

## What it does
Finds `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_` in a function that runs
`accelerator.backward`, in a file that offers fp16 to the Accelerator and never calls `unscale_gradients`.

## Why is this bad?
With `mixed_precision="fp16"` the gradients are multiplied by the loss scale until the prepared optimizer
steps. torch's function compares a norm that is 65,536 times too large with the limit, so every step is
clipped to almost nothing. The accelerator's own function unscales first.

## Example
```py
import torch
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        accelerator.backward(loss_fn(model(x), y))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
```

## Use instead
```py
import torch
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        accelerator.backward(loss_fn(model(x), y))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
```

## References
Accelerate's documentation of `Accelerator.clip_grad_norm_`.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.accelerators import may_run_in_fp16
from halfguard.lint.expressions import name_of, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG212",
    name="clip-outside-accelerate",
    cure="Call accelerator.clip_grad_norm_ instead, which unscales first.",
    contains=("clip_grad",),
    also_contains=("accelerator.backward",),
    severity="error",
)
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


def check(file: PythonFile) -> Iterator[Match]:
    """Find torch's clipping next to the backward pass of an Accelerator."""
    if any(True for _ in file.calls("unscale_gradients", "unscale_")) or not may_run_in_fp16(file):
        return
    around = {
        file.function_of(call)
        for call in file.calls("backward")
        if name_of(receiver(call)).endswith("accelerator")
    }
    for call in file.calls(*_CLIPS):
        if file.function_of(call) in around and file.full_name(call.func).startswith("torch."):
            message = "Accelerate has not unscaled these gradients yet when torch clips them."
            yield match_at(call, message)
