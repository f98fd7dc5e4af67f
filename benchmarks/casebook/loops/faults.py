"""A small training job into which one fault can be put, at any phase of a step.

The fault travels in the batch, so it reaches any training loop, and a loop that repeats the step meets it
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

Batch = dict[str, Tensor]
NONE, FIRST_AFTER = -1, -2  # in place of a fault's number: no fault, and the first batch after one
INITIAL_SCALE = 1024.0  # no healthy step of the job overflows with it


class InjectedError(RuntimeError):
    """The exception of a fault that raises."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong in one step.

    ``repairable``: the batch is good, and repeating the step in FP32 or with a lower scale trains on it.
    ``scaling``: the loss scale is the cause, so lowering it is right.
    """

    name: str
    description: str
    repairable: bool = False
    scaling: bool = False
    accumulate: int = 1
    steps: int = 1


FAULTS = (
    Fault("nan_batch", "NaN in the input of a batch"),
    Fault("two_nan_batches", "NaN in the input of two batches in a row", steps=2),
    Fault("forward_overflow", "a batch that overflows in FP16 but not in FP32", repairable=True),
    Fault("nan_loss", "a loss that is NaN in any precision"),
    Fault("inf_gradient", "an Inf gradient of one parameter, in any precision"),
    Fault("scaled_overflow", "gradients that overflow only when scaled", repairable=True, scaling=True),
    Fault("buffers_only", "NaN in BatchNorm's statistics; loss and gradients are finite"),
    Fault("bad_micro_batch", "NaN in one of two accumulated micro-batches", accumulate=2),
    Fault("raise_in_forward", "an exception in the forward pass"),
    Fault("raise_in_backward", "an exception in the backward pass"),
    Fault("raise_in_optimizer", "an exception at the beginning of optimizer.step()"),
)  # fmt: skip


class _Backward(torch.autograd.Function):
    """Add nothing to the loss, and a chosen gradient to a parameter."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.gradient, ctx.shape = gradient, parameter.shape
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient(above[0]).expand(ctx.shape), None


def _add_gradient(parameter: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
    zero: Tensor = _Backward.apply(parameter, gradient)  # type: ignore[no-untyped-call]
    return zero


def _infinite(above: Tensor) -> Tensor:
    return above * torch.inf


def _large_in_half(above: Tensor) -> Tensor:
    return (above.half() * 100).float()  # above is the scale: infinite from 1024 on, not below


def _raising(_above: Tensor) -> Tensor:
    raise InjectedError("raised in the backward pass")


_IN_BACKWARD = {"inf_gradient": _infinite, "scaled_overflow": _large_in_half}


class FaultyModel(nn.Module):
    """Two linear layers with BatchNorm between them; ``forward`` returns the loss of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.current_step = 0
        self.optimizer_raises = False
        self.gradients_left = False  # of the bad step, when the next one begins its backward pass

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss; the batch says which fault it carries."""
        number = int(batch["fault"])
        fault = FAULTS[number].name if number >= 0 else ""
        self.current_step = int(batch["step"])
        if fault == "raise_in_forward":
            raise InjectedError("raised in the forward pass")
        self.optimizer_raises = fault == "raise_in_optimizer"
        hidden = self.first(batch["x"])
        if fault == "buffers_only":
            with torch.no_grad():
                self.norm(hidden * torch.nan)
        if fault == "raise_in_backward":  # when the gradients of later layers are there already
            hidden = hidden + _add_gradient(self.first.bias, _raising)
        loss = nn.functional.mse_loss(self.last(self.norm(hidden).relu()).float(), batch["y"])
        if fault == "nan_loss":
            loss = loss * torch.nan
        if fault in _IN_BACKWARD:
            loss = loss + _add_gradient(self.last.bias, _IN_BACKWARD[fault])
        if number == FIRST_AFTER:
            loss = loss + _add_gradient(self.last.bias, self._look_for_gradients)
        return loss

    def _look_for_gradients(self, above: Tensor) -> Tensor:
        gradients = [parameter.grad for parameter in self.parameters()]
        self.gradients_left = any(g is not None and bool(g.any()) for g in gradients)
        return above * 0


class LoopParts:
    """What a training loop is made of: model, optimizer, scheduler, and how a loss is computed."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.accumulate = fault.accumulate
        self.initial_scale = INITIAL_SCALE
        self.model = FaultyModel()
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = LambdaLR(self.optimizer, lambda step: 0.99**step)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch, not divided by ``accumulate``."""
        loss: Tensor = model(batch)
        return loss


def batches_of(fault: Fault, *, steps: int, at: int) -> Sequence[Batch]:
    """Return ``steps`` steps of batches, where those from step ``at`` on have the fault."""
    random = torch.Generator().manual_seed(0)
    batches = []
    for step in range(steps):
        for micro in range(fault.accumulate):
            x = torch.randn(8, 4, generator=random)
            batch = {"x": x, "y": x.sum(1, keepdim=True), "step": torch.tensor(step)}
            bad = at <= step < at + fault.steps and micro == 0
            first_after = step == at + fault.steps and micro == 0
            number = FAULTS.index(fault) if bad else FIRST_AFTER if first_after else NONE
            batch["fault"] = torch.tensor(number)
            if bad and fault.name in {"nan_batch", "two_nan_batches", "bad_micro_batch"}:
                x[0, 0] = torch.nan
            if bad and fault.name == "forward_overflow":
                x *= 1e6
            batches.append(batch)
    return batches
