"""A deep residual stack with a norm written by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.zoo.base import Job, PlantedFailure, in_half, noise, seeded


class Share(nn.Module):
    """The share that each value has in the energy of its row."""

    def forward(self, x: Tensor) -> Tensor:
        square = x * x  # <- norm-square
        return square / (square.mean(-1, keepdim=True) + 1e-6)


class TinyEps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.half()
        root = torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-8)
        return x / root  # <- norm-eps


class Layer(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.linear = norm, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.linear(self.norm(x))
        return out


class Growing(nn.Module):
    """Doubles the stream in half, layer by layer, without a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        stream = x.half() * 20000
        for layer in self.layers:
            stream = stream + stream.abs() + layer(x)  # <- norm-residual
        return stream


def square(seed: int) -> Job:
    model = seeded(seed, lambda: nn.Sequential(nn.Linear(8, 8), Layer(Share())))
    return Job(model, in_half, noise(seed, 4, 8) * 5000)


def eps(seed: int) -> Job:
    model = seeded(seed, lambda: nn.Sequential(Layer(nn.Identity()), Layer(TinyEps())))
    batch = noise(seed, 4, 8)
    for parameter in model[0].parameters():  # type: ignore[index, union-attr]
        nn.init.zeros_(parameter)
    batch[1] = 0.0
    return Job(model, in_half, batch)


def residual(seed: int) -> Job:
    return Job(seeded(seed, Growing), in_half, noise(seed, 4, 8))


PLANTED_FAILURES = (
    PlantedFailure("norm-square", square, "mul", "1.norm"),
    PlantedFailure("norm-eps", eps, "div", "1.norm"),
    PlantedFailure("norm-residual", residual, "add", ""),
)
