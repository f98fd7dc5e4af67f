"""A regression on which half weights stall: every update is below half the spacing of its weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import autocast, weights_dtype
from halfguard.precision_names import Precision
from tests.support.devices import chosen_device, place

STEPS = 300
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=4e-4),
    "momentum": lambda model: SGD(model.parameters(), lr=4e-5, momentum=0.9),
    "adamw-foreach": lambda model: AdamW(model.parameters(), lr=1e-4, foreach=True),
    "adamw-fused": lambda model: AdamW(model.parameters(), lr=1e-4, fused=True),
}


def linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A layer of ones, made without touching the global generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)  # type: ignore[no-untyped-call]
    for param in layer.parameters():
        nn.init.ones_(param)
    return place(layer)


def network(generator: torch.Generator) -> nn.Sequential:
    """Two layers whose weights have magnitudes between 0.5 and 1: spacing 2**-11 in half."""
    model = nn.Sequential(linear(16, 32), nn.Tanh(), linear(32, 4))
    with torch.no_grad():
        for param in model.parameters():
            magnitude = 0.5 + 0.5 * torch.rand(param.shape, generator=generator)
            sign = torch.randint(0, 2, param.shape, generator=generator) * 2 - 1
            param.copy_(magnitude * sign)
    return model


def task() -> tuple[nn.Module, Tensor, Tensor]:
    """The student, which is the teacher moved a little, with the inputs and the teacher's answers."""
    generator = torch.Generator().manual_seed(7)
    teacher = network(generator)
    x = torch.randn(64, 16, generator=generator)
    with torch.no_grad():
        y = teacher(x) + 0.05 * torch.randn(64, 4, generator=generator)
        for param in teacher.parameters():
            param.add_(0.05 * torch.randn(param.shape, generator=generator))
    return teacher, x, y


def train(
    precision: Precision, build: Callable[[nn.Module], Optimizer], *, masters: bool
) -> tuple[float, float]:
    """Return the loss before and after training, measured in FP32; the loss scale is 2**10."""
    model, x, y = task()
    before = _loss(model, x, y)
    model.to(weights_dtype(precision))
    optimizer = build(model)
    if masters:
        optimizer = MasterWeights(optimizer)
    scale = 1024.0 if precision.needs_loss_scale else 1.0
    for _ in range(STEPS):
        optimizer.zero_grad()
        with autocast(precision, chosen_device().type):
            loss = nn.functional.mse_loss(model(x), y)
        torch.autograd.backward(loss * scale)
        unscale(optimizer, scale)
        optimizer.step()
    return before, _loss(model.float(), x, y)


@torch.no_grad()
def unscale(optimizer: Optimizer, scale: float) -> None:
    for group in optimizer.param_groups:
        torch._foreach_div_([p.grad for p in group["params"]], scale)


@torch.no_grad()
def _loss(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return nn.functional.mse_loss(model(x), y).item()
