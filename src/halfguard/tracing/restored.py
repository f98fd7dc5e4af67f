"""Restore what a step changes, so that it can be run to look inside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from halfguard.step.random_state import preserved_random_state


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore after the block what a step changes: gradients, buffers, random state."""
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    for parameter, _ in grads:
        parameter.grad = None
    try:
        with preserved_random_state():
            yield
    finally:
        for parameter, grad in grads:
            parameter.grad = grad
        with torch.no_grad():
            for buffer, saved in buffers:
                buffer.copy_(saved)
