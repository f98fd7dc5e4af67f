"""A recurrent network with an exponential gate and attention over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.zoo.base import Job, PlantedFailure, in_full, noise, seeded


class Cell(nn.Module):
    def __init__(self, growth: float) -> None:
        super().__init__()
        self.gate, self.growth = nn.Linear(8, 8), growth

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return torch.exp(self.gate(x).abs() * self.growth + state)  # <- rnn-exp


class Rnn(nn.Module):
    """The same cell at every time step."""

    def __init__(self, growth: float) -> None:
        super().__init__()
        self.cell = Cell(growth)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 8)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


class Length(nn.Module):
    """The length of a vector that starts at zero: its gradient has no direction there."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        states = self.embed(x)
        return torch.sqrt(states.square().sum(-1))  # <- rnn-sqrt-at-zero


class OverTime(nn.Module):
    """Weights that are clipped at zero, all of them for some sequence, and divided by their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.relu(self.score(x) - 100)
        weight = weight / weight.sum(1, keepdim=True)  # <- rnn-zero-sum
        return (weight * x).sum(1)


def exponential(seed: int) -> Job:
    return Job(seeded(seed, lambda: Rnn(2.0)), in_full, noise(seed, 2, 3, 8))


def sqrt_at_zero(seed: int) -> Job:
    x = noise(seed, 2, 3, 8)
    x[:, 0] = 0.0
    return Job(seeded(seed, Length), in_full, x)


def zero_sum(seed: int) -> Job:
    return Job(seeded(seed, OverTime), in_full, noise(seed, 2, 3, 8))


PLANTED_FAILURES = (
    PlantedFailure("rnn-exp", exponential, "exp", "cell"),
    PlantedFailure("rnn-sqrt-at-zero", sqrt_at_zero, "sqrt", "", "backward"),
    PlantedFailure("rnn-zero-sum", zero_sum, "div", ""),
)
