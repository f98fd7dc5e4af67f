"""Training jobs in which one batch of every few overflows in half, and none in FP32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import halfguard as hg
from halfguard.step.random_state import seeded
from tests.support.devices import place

FEATURES, CLASSES, ROWS = 8, 4, 16
Batch = tuple[Tensor, Tensor]
RETRY: dict[str, Any] = {"skip": {"on_nonfinite": "retry_fp32"}}
HEAL = RETRY | {"heal": {}}


@dataclass(frozen=True)
class Job:
    """A job whose every ``period``-th batch has rows that are ``factor`` times louder."""

    name: str
    model: Callable[[], nn.Module]
    period: int
    factor: float
    loss: Callable[[nn.Module, Batch], Tensor]

    def job(self, seed: int) -> hg.Workload:
        with seeded(seed):
            model = place(self.model())
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, eps=1e-6)
        return hg.Workload(model, self.loss, self.batches, optimizer)

    def batches(self, count: int = 64) -> list[Batch]:
        return [self.batch(index) for index in range(count)]

    def batch(self, index: int) -> Batch:
        generator = torch.Generator().manual_seed(1000 + index)
        x = torch.randn(ROWS, FEATURES, generator=generator, device="cpu")
        y = x[:, :CLASSES].argmax(1)
        if index % self.period == self.period - 1:
            x[::4] *= self.factor
        return place((x, y))


class CubicGate(nn.Module):
    """A gate whose argument overflows; NaN arises in its backward pass, or in what follows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        return self.down(h * h * h / (1 + h * h * h.abs()))


class Residual(nn.Module):
    """Two gates after each other, in a list."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList([CubicGate(width), CubicGate(width)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.norm(h))


class Attention(nn.Module):
    """Attention over the features as tokens, with its own matrix product."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.embed, self.qkv = nn.Linear(1, width), nn.Linear(width, 3 * width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(x[..., None])).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(self.width), dim=-1)
        return self.head(self.norm((weights @ v).mean(1)))


class AttentionNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


class Variance(nn.Module):
    """A normalization by hand, whose sum of squares overflows: inf / inf is NaN."""

    def forward(self, x: Tensor) -> Tensor:
        squares = (x * x).sum(-1, keepdim=True)
        return x * (squares / (squares + 1.0))


class Cubes(nn.Module):
    """Cubes that overflow, with a weight for each feature and no matrix product."""

    def __init__(self, width: int = FEATURES) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        cubes = x * x * x * self.weight
        return cubes / (1 + cubes.abs())


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv1d(1, 6, 3, padding=1), Variance()
        self.drop, self.norm = nn.Dropout(0.1), nn.BatchNorm1d(6)
        self.head = nn.Linear(6 * FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.scale(torch.relu(self.conv(x[:, None]))))
        return self.head(torch.tanh(self.norm(h)).flatten(1))


class Plain(nn.Module):
    """A classifier; the fault is in its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class OwnWeights(nn.Module):
    """A model whose own forward uses a child's weight, so that no child is to blame."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.nn.functional.linear(x, self.first.weight) * 64.0
        return self.last(h / (1 + h.abs().amax(-1, keepdim=True)))


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]).float(), batch[1])


def energy_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return a loss with an energy term that overflows in half for loud rows."""
    x, y = batch
    logits = model(x)
    energy = logits * x.half().float().square().sum(-1, keepdim=True).to(logits.dtype)
    penalty: Tensor = (energy / (1 + energy.abs())).float().square().mean()
    return cross_entropy(logits.float(), y) + 0.01 * penalty


JOBS = (
    Job("gate", Residual, 4, 60.0, loss_fn),
    Job("attention", AttentionNet, 3, 400.0, loss_fn),
    Job("conv", ConvNet, 2, 600.0, loss_fn),
    Job("loss", Plain, 5, 400.0, energy_loss),
    Job("own-weights", OwnWeights, 8, 3000.0, loss_fn),
)
BY_NAME = {job.name: job for job in JOBS}
