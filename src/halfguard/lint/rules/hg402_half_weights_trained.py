"""Half weights are trained without float32 copies.

## What it does
Finds a model made half in a file that trains it with a plain backward pass and optimizer step, or with a
`Trainer` whose `fp16` is off.

## Why is this bad?
A weight of 1 minus an update of 1e-4 is 1 in half: updates below 2**-11 of the weight are lost, every one
of them, and no error says so. The loss stalls, or evaluation is NaN while training shows 0.0.

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

## References
TinyLlama#32; `halfguard explain 1-1e-4`.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, boolean
from halfguard.lint.rule import Meta
from halfguard.lint.weights import half_models_of

META = Meta(
    code="HG402",
    name="half-weights-trained",
    cure="Keep weights in float32 and use autocast, or add float32 copies: halfguard.MasterWeights.",
    words=("half(", "float16", "torch.half"),
    also=("step(", "TrainingArguments", "SFTConfig"),
    severity="error",
)


def check(module: Model) -> Iterator[Match]:
    """Find training of half weights."""
    if module.roles.has_scaler or "MasterWeights" in module.source.text:
        return
    places = {
        module.function_of(event.node)
        for step in module.steps
        if step.has("optimizer_step") and step.has("backward")
        for event in step.events
    }
    places |= {
        module.function_of(call)
        for call in module.calls("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")
        if boolean(argument(call, -1, "fp16")) is False
    }
    for call in half_models_of(module, places) if places else ():
        yield match_at(call, "Half weights lose small updates: 1 - 1e-4 is 1 in half.")
