"""Runs of likelihoods: variances, flows, mixtures, task weights and counts. Losses go below 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.forecast_runs.third_layers import Exp, mlp, seeded
from benchmarks.models.planted.base import Training


class Precise(nn.Module):
    """Return means and precisions side by side."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.mean = nn.Linear(inputs, 1)
        self.log_precision = nn.Parameter(torch.zeros(1))
        self.precision = Exp()

    def forward(self, x: Tensor) -> Tensor:
        precision: Tensor = self.precision(self.log_precision)
        return torch.cat([self.mean(x), precision.expand(len(x), 1)], -1)


def variances(
    seed: int, noise: float, lr: float, steps: int = 1000, factor: Factor = constant
) -> Training:
    """Predict a reading and its precision; ``noise`` is the reading's true deviation."""
    g = seeded(seed)
    truth = torch.randn(6, 1, generator=g)
    model = Precise(6)
    groups: list[dict[str, Any]] = [
        {"params": [model.log_precision]},
        {"params": list(model.mean.parameters()), "lr": lr / 4},
    ]
    optimizer = scheduled(torch.optim.Adam(groups, lr=lr), factor)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(64, 6, generator=g)
        return x, x @ truth + noise * torch.randn(64, 1, generator=g)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        mean, precision = model(batch[0]).float().chunk(2, -1)
        return functional.gaussian_nll_loss(mean, batch[1], 1 / precision, eps=1e-12)

    return model, loss_fn, batch_fn, optimizer, steps


class Coupling(nn.Module):
    """Shift one half of the pixels by a function of the other."""

    def __init__(self, width: int, swap: bool) -> None:
        super().__init__()
        self.split = width // 2
        self.swap = swap
        self.net = mlp(self.split, 32, self.split)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[:, : self.split], x[:, self.split :]
        if self.swap:
            return torch.cat([a + self.net(b), b], -1)
        return torch.cat([a, b + self.net(a)], -1)


class Flow(nn.Module):
    """Couplings and then a scale for each pixel; return the pixels and their scales."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.couplings = nn.Sequential(*(Coupling(width, swap=bool(i % 2)) for i in range(4)))
        self.log_scales = nn.Parameter(torch.zeros(width))
        self.scales = Exp()

    def forward(self, x: Tensor) -> Tensor:
        scales: Tensor = self.scales(self.log_scales)
        return torch.stack([self.couplings(x) * scales, scales.expand_as(x)])


def flow(
    seed: int, dequantize: float, lr: float, steps: int = 700, factor: Factor = constant
) -> Training:
    """Fit a flow to small pictures whose borders are always black.

    ``dequantize`` is the noise that is added to the pixels, as it should be.
    """
    seeded(seed)
    width = 8
    model = Flow(width)
    optimizer = scheduled(torch.optim.Adam(model.parameters(), lr=lr), factor)

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        x = torch.randn(64, width, generator=g).cumsum(-1) / 2
        x[:, ::4] = 0
        return x + dequantize * torch.rand(x.shape, generator=g)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        point, scales = model(batch).float()
        loss: Tensor = (0.5 * point.square() - scales.log()).sum(-1).mean()
        return loss

    return model, loss_fn, batch_fn, optimizer, steps


class Mixture(nn.Module):
    """Return weights, means and precisions of the components."""

    def __init__(self, components: int) -> None:
        super().__init__()
        self.weights = nn.Sequential(mlp(3, 32, components), nn.LogSoftmax(-1))
        self.means = nn.Parameter(torch.linspace(0.1, 1, components))
        self.log_precisions = nn.Parameter(torch.full((components,), 4.0))
        self.precisions = Exp()

    def forward(self, x: Tensor) -> Tensor:
        precisions: Tensor = self.precisions(self.log_precisions)
        parts = [part.expand(len(x), -1) for part in (self.means, precisions)]
        return torch.cat([self.weights(x), *parts], -1)


def mixture(
    seed: int, lr: float, jitter: float = 0.0, steps: int = 1000, factor: Factor = constant
) -> Training:
    """Fit a mixture density to ages, of which many were entered as exactly 0."""
    seeded(seed)
    model = Mixture(5)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(64, 3, generator=g)
        age = 0.4 + 0.1 * x[:, :1] + 0.05 * torch.randn(64, 1, generator=g)
        age = torch.where(torch.rand(64, 1, generator=g) < 0.3, 0 * age, age)
        return x, age + jitter * torch.randn(64, 1, generator=g)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        log_weight, mean, precision = model(batch[0]).float().chunk(3, -1)
        log_density = 0.5 * (precision.log() - precision * (batch[1] - mean).square())
        loss: Tensor = -(log_weight + log_density).logsumexp(-1).mean()
        return loss

    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class Weighted(nn.Module):
    """Two tasks on one trunk, each with a learnt weight; return the weighted losses' parts."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = nn.Linear(8, 2)
        self.log_weights = nn.Parameter(torch.zeros(2))
        self.weights = Exp()

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.weights(self.log_weights)
        return torch.cat([self.tasks(x), weights.expand(len(x), 2)], -1)


def task_weights(
    seed: int, noise: float, lr: float, steps: int = 1000, factor: Factor = constant
) -> Training:
    """Weigh two tasks by learnt uncertainties; the first can be solved up to ``noise``."""
    g = seeded(seed)
    truth = torch.randn(8, 2, generator=g)
    deviation = torch.tensor([noise, 1.0])
    model = Weighted()
    groups: list[dict[str, Any]] = [
        {"params": [model.log_weights]},
        {"params": list(model.tasks.parameters()), "lr": lr / 4},
    ]
    optimizer = torch.optim.Adam(groups, lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(64, 8, generator=g)
        return x, x @ truth + deviation * torch.randn(64, 2, generator=g)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        predicted, weights = model(batch[0]).float().chunk(2, -1)
        losses = (predicted - batch[1]).square()
        loss: Tensor = (weights * losses - weights.log()).sum(-1).mean()
        return loss

    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


def epidemic(seed: int, cases: Callable[[int], float], lr: float, steps: int = 900) -> Training:
    """Forecast daily cases in districts with a Poisson likelihood, on the data of the day."""
    seeded(seed)
    model = nn.Sequential(mlp(4, 16, 1, activation=nn.Tanh), Exp())
    with torch.no_grad():
        list(model.parameters())[-1].fill_(math.log(cases(0)))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(32, 4, generator=g)
        rate = cases(step) * torch.exp(0.3 * x[:, :1].clamp(-2, 2))
        return x, torch.poisson(rate, generator=g)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        rate = model(batch[0]).float()
        scale = batch[1].mean()
        return functional.poisson_nll_loss(rate, batch[1], log_input=False) / scale

    return model, loss_fn, batch_fn, optimizer, steps
