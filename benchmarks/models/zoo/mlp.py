"""A multilayer perceptron."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from benchmarks.models.zoo.base import Job, PlantedFailure, in_full, in_half, noise, seeded


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x)) * 1000
        out: Tensor = self.down(hidden)  # <- mlp-matmul
        return out


class LogProbability(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        p = torch.softmax(self.down(self.up(x)) * 1e4, -1)
        return -torch.log(p)  # <- mlp-log-of-zero


class Caster(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x)) * 1e6
        low = hidden.half()  # <- mlp-cast
        return low.float() - low.float()


def matmul(seed: int) -> Job:
    model = seeded(seed, Mlp)
    assert isinstance(model, Mlp)
    nn.init.constant_(model.down.weight, 30.0)
    return Job(model, in_half, noise(seed, 4, 8))


def log_of_zero(seed: int) -> Job:
    return Job(seeded(seed, LogProbability), in_full, noise(seed, 4, 8))


def cast(seed: int) -> Job:
    return Job(seeded(seed, Caster), in_full, noise(seed, 4, 8))


class ExpBlock(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x * 1000)  # <- mlp-compiled


def compiled(seed: int) -> Job:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, while it imports the compiler
        block = torch.compile(ExpBlock())
    model = seeded(seed, lambda: nn.Sequential(nn.Linear(8, 8), block))  # type: ignore[call-overload]
    return Job(model, in_full, noise(seed, 4, 8))


PLANTED_FAILURES = (
    PlantedFailure("mlp-matmul", matmul, "addmm", "down"),
    PlantedFailure("mlp-log-of-zero", log_of_zero, "log", ""),
    PlantedFailure("mlp-cast", cast, "to", ""),
    PlantedFailure("mlp-compiled", compiled, "exp", "1", compiled=True),
)
