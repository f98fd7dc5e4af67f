"""Signals and control: amplifiers, policies that push a state, sequences that get longer."""

# mypy: warn-return-any=False
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.planted.base import Training


class Amplifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 5, padding=2)
        self.second = nn.Conv1d(8, 8, 5, padding=2)
        self.last = nn.Conv1d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.silu(self.second(F.silu(self.first(x)))))


def amplifier(
    seed: int,
    *,
    lr: float,
    loudness: float,
    squared: bool = False,
    factor: Factor = constant,
    steps: int = 1000,
) -> Training:
    """An amplifier in the integers of a sound card, by RMSprop."""
    torch.manual_seed(seed)
    model = Amplifier()

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        error = (model(batch).float() - loudness * batch) / 100
        return error.square().mean() if squared else error.abs().mean()

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        tone = 0.1 + 0.4 * torch.rand(8, 1, 1, generator=g)
        return torch.sin(tone * torch.arange(32)) + 0.05 * torch.randn(8, 1, 32, generator=g)

    optimizer = torch.optim.RMSprop(model.parameters(), lr)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class Steering(nn.Module):
    """A state that a policy pushes, with friction."""

    def __init__(self, friction: float) -> None:
        super().__init__()
        self.friction = friction
        self.policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
        self.view = nn.LayerNorm(4)
        self.push = Push()

    def forward(self, state: Tensor) -> Tensor:
        for _ in range(8):
            state = self.push(state, self.policy(self.view(state)), self.friction)
        return state


class Push(nn.Module):
    def forward(self, state: Tensor, force: Tensor, friction: float) -> Tensor:
        return (1 - friction) * state + force


def steering(
    seed: int,
    *,
    lr: float,
    friction: float = 0.0,
    effort: float = 0.0,
    factor: Factor = constant,
    steps: int = 1000,
) -> Training:
    """A policy that is paid for distance; ``effort`` is the price of the square of it."""
    torch.manual_seed(seed)
    model = Steering(friction)
    goal = torch.randn(4)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        state = model(batch).float()
        return effort * state.square().mean() - (state * goal).mean()

    def batch_fn(step: int) -> Tensor:
        return torch.randn(24, 4, generator=generator(seed, step))

    optimizer = torch.optim.NAdam(model.parameters(), lr)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class LongSum(nn.Module):
    """Adds up events of a log, and classifies the log by the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.event, self.total = nn.Linear(5, 24), Total()
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.total(F.softplus(self.event(x)))))


class Total(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (torch.ones_like(x[:, :1, :1]).expand(-1, 1, x.shape[1]) @ x).squeeze(1)


def long_logs(
    seed: int,
    *,
    length: Callable[[int], float],
    unit: float,
    lr: float = 2e-3,
    factor: Factor = constant,
    steps: int = 1000,
) -> Training:
    """Logs whose length follows the step; ``unit`` is that of the events."""
    torch.manual_seed(seed)
    model = LongSum()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = unit * torch.rand(8, max(int(length(step)), 1), 5, generator=g)
        return x, x.mean(1)[:, :3].argmax(1)

    optimizer = torch.optim.AdamW(model.parameters(), lr)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps
