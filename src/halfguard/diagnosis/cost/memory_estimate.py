"""Estimate the full memory of a step that ran out of memory.

A step that fails in its first forward pass has no gradients and no optimizer state yet. Advice based on its
memory so far would miss the larger half. Both follow from the parameters: a gradient is as large as its
parameter, and the state of an optimizer is measured on a small parameter. The activations of the whole batch
follow from those of a few of its rows.
"""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from halfguard.precision import MasterWeights
from halfguard.records.cost import StepMemory

SIDE = 64  # of the small, square parameter


def estimate_full_step(
    memory: StepMemory, model: nn.Module, optimizer: Optimizer, activations: int
) -> StepMemory:
    """Return the estimated memory of the step if it had not failed."""
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = sum(p.untyped_storage().nbytes() for p in trained)
    state = round(state_ratio(optimizer) * gradients)
    largest = memory.largest.model_copy(
        update={
            "gradients": max(memory.largest.gradients, gradients),
            "optimizer": max(memory.largest.optimizer, state),
            "activations": max(memory.largest.activations, activations),
        }
    )
    reached = {"optimizer": largest.optimizer, "activations": largest.activations}
    in_pass = memory.in_pass.model_copy(update=reached)
    in_update = largest.model_copy(update={"activations": 0, "weight_copies": 0, "other": 0})
    moments = {"largest": largest, "in_pass": in_pass, "in_update": in_update}
    return memory.model_copy(update=moments)


def state_ratio(optimizer: Optimizer) -> float:
    """Return bytes of state per byte of parameters; 0 if a second optimizer cannot be made."""
    inner = optimizer.inner if isinstance(optimizer, MasterWeights) else optimizer
    param = nn.Parameter(torch.zeros(SIDE, SIDE))
    param.grad = torch.ones_like(param)
    try:
        known = inspect.signature(type(inner)).parameters
        chosen = {name: value for name, value in inner.defaults.items() if name in known}
        small = type(inner)([param], **chosen)
        small.step()
    except Exception:  # noqa: BLE001 - any optimizer, with any constructor
        return 0.0
    tensors = [leaf for leaf in tree_leaves(small.state[param]) if isinstance(leaf, torch.Tensor)]
    return sum(t.nbytes for t in tensors if t.numel() > 1) / param.nbytes
