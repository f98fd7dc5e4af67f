"""A model that is looked at is left as it was found: weights, gradients, attributes, random generators.

Nothing of the size of the model is copied, so a model that just fits into memory can be looked at. Weights
that were converted get their old storage back, and gradients are put aside for as long as it takes. What a
forward pass itself writes into its own weights, in place, stays written; so does what it does to objects
that are neither modules nor held by one in a plain container.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from halfguard.diagnosis.model.attributes import Attributes
from halfguard.diagnosis.model.frameworks.inputs import is_a
from halfguard.step.random_state import capture_random_state, restore_random_state


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Let the block convert, move and run the model; afterwards everything is as before."""
    states = capture_random_state()
    weights = [(parameter, parameter.data, parameter.grad) for parameter in model.parameters()]
    attributes = Attributes(model)
    for parameter, _, _ in weights:
        parameter.grad = None  # a conversion would reach it, and a backward pass within the loss
    try:
        yield
    finally:
        restore_random_state(states)
        for parameter, data, gradient in weights:
            parameter.grad = None
            # Only what was converted: a sharded parameter swaps its data by itself.
            if parameter.dtype != data.dtype or parameter.device != data.device:
                parameter.data = data
            parameter.grad = gradient
        attributes.restore()
        # Under autocast torch keeps casted weights; those of a converted model must not survive it.
        torch.clear_autocast_cache()


def reshard(model: nn.Module) -> None:
    """Give FSDP2 its shards back: after a forward pass it keeps whole parameters for a backward pass."""
    module: Any
    for module in model.modules():
        if is_a(module, "FSDPModule", "torch"):
            module.reshard()
