"""What all runs share: batches by step, learning-rate schedules, and the FP32 reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.models.planted.base import Training
from halfguard.formats import FP16

Factor = Callable[[int], float]


def generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(7_919 * seed + 104_729 * (step + 1))


def constant(step: int) -> float:
    return 1.0


def warmup_cosine(warmup: int, total: int, floor: float = 0.0) -> Factor:
    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min((step - warmup) / (total - warmup), 1.0)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))

    return factor


def warmup(steps: int) -> Factor:
    return lambda step: min((step + 1) / steps, 1.0)


def drops(every: int, by: float) -> Factor:
    return lambda step: by ** (step // every)


def scheduled(optimizer: Optimizer, factor: Factor) -> Optimizer:
    """Return the optimizer with a schedule that moves on with its steps."""
    if factor is not constant:
        scheduler = LambdaLR(optimizer, factor)
        optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer


def largest_outputs(training: Training, steps: int | None = None) -> list[float]:
    """Train in FP32; return the largest magnitude among all modules' outputs, step by step.

    The run ends at the first one that FP16 cannot hold.
    """
    model, loss_fn, batch_fn, optimizer, own_steps = training
    seen: list[Tensor] = []

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        seen.append(output.detach().abs().amax())

    for module in model.modules():
        module.register_forward_hook(hook)
    peaks: list[float] = []
    for step in range(own_steps if steps is None else steps):
        seen.clear()
        optimizer.zero_grad(set_to_none=True)
        loss_fn(model, batch_fn(step)).backward()
        optimizer.step()
        peaks.append(torch.stack(seen).max().item())
        if not peaks[-1] <= FP16.largest:
            break
    return peaks
