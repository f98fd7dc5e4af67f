"""Restore a model after it was examined: weights, gradients, attributes, random state.

The weights are not copied, so a model that just fits into memory can be examined. Converted weights get
their old storage back, and gradients are kept aside meanwhile. Not restored: in-place writes of the forward
pass to its own weights, and changes to objects that are neither modules nor in a plain container of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from halfguard.diagnosis.model.attributes import SavedAttributes
from halfguard.diagnosis.model.frameworks.inputs import is_a
from halfguard.step.random_state import capture_random_state, restore_random_state


@contextmanager
def restore_afterwards(model: nn.Module) -> Iterator[None]:
    """Restore the model after the block, which may convert, move and run it."""
    states = capture_random_state()
    weights = [(parameter, parameter.data, parameter.grad) for parameter in model.parameters()]
    attributes = SavedAttributes(model)
    for parameter, _, _ in weights:
        parameter.grad = None  # a conversion, or a backward pass in the loss, would change it
    try:
        yield
    finally:
        restore_random_state(states)
        for parameter, data, gradient in weights:
            parameter.grad = None
            # Only converted parameters: FSDP replaces the data of a sharded parameter itself.
            if parameter.dtype != data.dtype or parameter.device != data.device:
                parameter.data = data
            parameter.grad = gradient
        attributes.restore()
        # Under autocast torch caches cast weights; those of the converted model must not be used again.
        torch.clear_autocast_cache()


def reshard(model: nn.Module) -> None:
    """Reshard FSDP2 modules: after a forward pass they keep full parameters for the backward pass."""
    module: Any
    for module in model.modules():
        if is_a(module, "FSDPModule", "torch"):
            module.reshard()
