"""Runs on pictures and signals: raw units and steps that are too long."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.forecast_runs.third_layers import Affine, mlp, seeded
from benchmarks.models.planted.base import Training


def speech(seed: int, lr: float, loud: float, steps: int = 600) -> Training:
    """Tell tones in 16-bit samples, which enter as they are and are normalized after a layer."""
    seeded(seed)
    first = nn.Conv1d(1, 8, 9, stride=4, bias=False)
    nn.init.orthogonal_(first.weight)
    model = nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(112, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        tone = torch.randint(6, (32,), generator=g)
        time = torch.arange(64) / 64 + torch.rand(32, 1, generator=g)
        wave = torch.sin(4 * math.pi * (tone[:, None] + 1) * time)
        wave = wave + 0.5 * torch.randn(32, 64, generator=g)
        return (loud * wave).clamp(-32768, 32767).round()[:, None], tone

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]).float(), batch[1])

    return model, loss_fn, batch_fn, optimizer, steps


def spectra(
    seed: int,
    lr: float,
    bright: float,
    rare: float = 0.0,
    steps: int = 700,
    factor: Factor = constant,
) -> Training:
    """Compress spectra in detector counts; ``rare`` is how often a batch has cosmic rays."""
    g = seeded(seed)
    lines = torch.rand(4, 32, generator=g) ** 4
    model = nn.Sequential(
        Affine(1 / bright), mlp(32, 24, 4, activation=nn.SiLU), mlp(4, 24, 32), Affine(bright)
    )
    optimizer = scheduled(torch.optim.Adam(model.parameters(), lr=lr), factor)

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        signal = torch.rand(32, 4, generator=g) @ lines / 2
        x: Tensor = bright * signal + math.sqrt(bright) * torch.randn(32, 32, generator=g)
        if torch.rand((), generator=g) < rare:
            x[torch.randint(32, (), generator=g)] *= 8
        return x

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        return functional.mse_loss(model(batch).float() / bright, batch / bright)

    return model, loss_fn, batch_fn, optimizer, steps


def long_steps(
    seed: int,
    excess: float,
    size: Callable[[int], int] = lambda step: 512,
    total: bool = False,
    steps: int = 900,
    factor: Factor = constant,
) -> Training:
    """Regress with plain SGD; ``excess`` is the rate as a multiple of the largest stable one.

    With ``total`` the loss is summed over the batch instead of averaged, alike at a batch of 256.
    """
    g = seeded(seed)
    x = torch.randn(512, 16, generator=g) * torch.linspace(0.3, 1, 16)
    y = x @ torch.randn(16, 1, generator=g) + 0.1 * torch.randn(512, 1, generator=g)
    curvature = 2 * torch.linalg.eigvalsh(x.T @ x / 512)[-1].item()
    model = nn.Sequential(nn.Linear(16, 1, bias=False))
    lr = excess * 2 / curvature / (256 if total else 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        return x[: size(step)], y[: size(step)]

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        predicted = model(batch[0]).float()
        return functional.mse_loss(predicted, batch[1], reduction="sum" if total else "mean")

    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps
