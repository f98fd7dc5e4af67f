"""Parts that a guard cannot work with, rejected at construction, before any weight is changed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.step.parameters import parameters_of


def raise_if_unsupported(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raise a UsageError that names the part and the cure."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UsageError(
                f"{name} is lazy and has no shape yet, but the guard needs the shapes of all parameters.",
                cure="Run one batch through the model before you create the optimizer and the guard.",
            )
    for optimizer in optimizers:
        _raise_if_closure(optimizer)
        _raise_if_complex(model, optimizer)


def _raise_if_closure(optimizer: Optimizer) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    needs_closure = closure is not None and closure.default is inspect.Parameter.empty
    is_sam = hasattr(optimizer, "first_step") and hasattr(optimizer, "second_step")
    if needs_closure or is_sam or isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            f"{type(optimizer).__name__}.step() needs a closure that computes the loss several times, but "
            "the guard checks one loss and its gradients.",
            cure="Use an optimizer that steps once per backward pass, or train without the guard.",
        )


def _raise_if_complex(model: nn.Module, optimizer: Optimizer) -> None:
    complex_ones = {id(p) for p in parameters_of(optimizer) if p.is_complex()}
    if complex_ones:
        names = [name for name, p in model.named_parameters() if id(p) in complex_ones]
        raise UsageError(
            f"{', '.join(names[:3]) or 'A parameter'} is complex, and torch cannot unscale complex "
            "gradients.",
            cure="Store it as two real numbers: nn.Parameter(torch.view_as_real(w)), and use "
            "torch.view_as_complex(parameter) in forward.",
        )
