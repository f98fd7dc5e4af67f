"""Runs on tables and fields: play counts, prices, pressures and graphs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.forecast_runs.third_layers import mlp, seeded
from benchmarks.models.planted.base import Training


class Factors(nn.Module):
    """Products of the embeddings of users and items."""

    def __init__(self, users: int, items: int, width: int, start: float) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        nn.init.uniform_(self.users.weight, 0, start)
        nn.init.uniform_(self.items.weight, 0, start)

    def forward(self, pairs: Tensor) -> Tensor:
        product: Tensor = (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(-1)
        return product


def plays(
    seed: int,
    count: float,
    lr: float,
    decay: float = 0.0,
    steps: int = 900,
    factor: Factor = constant,
) -> Training:
    """Factorize raw play counts, which have a long tail; ``count`` is the largest."""
    g = seeded(seed)
    love = torch.rand(60, generator=g)[:, None] * torch.rand(80, generator=g) ** 3
    table = count * love / love.max()
    model = Factors(60, 80, 16, 0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        pairs = torch.stack([torch.randint(n, (256,), generator=g) for n in (60, 80)], -1)
        return pairs, table[pairs[:, 0], pairs[:, 1]]

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.smooth_l1_loss(model(batch[0]).float(), batch[1], beta=10.0)

    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


def prices(
    seed: int, mean: float, lr: float, steps: int = 900, factor: Factor = constant
) -> Training:
    """Regress the prices of houses, in their own unit, on standardized features."""
    g = seeded(seed)
    worth = torch.randn(10, 1, generator=g) * 0.1
    model = mlp(10, 64, 64, 1)
    optimizer = scheduled(torch.optim.Adam(model.parameters(), lr=lr), factor)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(48, 10, generator=g).clamp(-2.5, 2.5)
        y = (x @ worth + 0.1 * torch.randn(48, 1, generator=g)).clamp(-0.6, 0.6)
        return x, mean * y.exp()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.l1_loss(model(batch[0]).float(), batch[1])

    return model, loss_fn, batch_fn, optimizer, steps


class Decay(nn.Module):
    """A field over height, and, below it, the field a little higher."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(1, 32, 32, 1, activation=nn.SiLU)

    def forward(self, height: Tensor) -> Tensor:
        return torch.stack([self.net(height), self.net(height + 0.02)])


def atmosphere(
    seed: int, ground: float, lr: float, steps: int = 900, factor: Factor = constant
) -> Training:
    """Solve dp/dh = -p for the pressure over height, from the pressure at the ground."""
    seeded(seed)
    model = Decay()
    optimizer = scheduled(torch.optim.Adam(model.parameters(), lr=lr), factor)

    def batch_fn(step: int) -> Tensor:
        height = torch.rand(32, 1, generator=generator(seed, step))
        return torch.cat([torch.zeros(8, 1), height])

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        here, above = model(batch).float()
        residual = (above - here) / 0.02 + (above + here) / 2
        loss: Tensor = 5 * (here[:8] - ground).abs().mean() + residual[8:].abs().mean()
        return loss

    return model, loss_fn, batch_fn, optimizer, steps


class Gather(nn.Module):
    """Sum each node's neighbours, then a linear layer; keep what came before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        y: Tensor = x + functional.relu(self.mix(graph @ x))
        return y


class GraphNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.layers = nn.ModuleList(Gather(width) for _ in range(3))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, graph: Tensor, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(graph, x)
        label: Tensor = self.head(x.sum(0))
        return label


def graphs(
    seed: int, size: Callable[[int], float], lr: float, spread: float = 0.0, steps: int = 800
) -> Training:
    """Classify graphs, summing over neighbours; ``size`` is the number of nodes by step."""
    seeded(seed)
    model = GraphNet(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(seed, step)
        tail = math.exp(spread * torch.randn((), generator=g).clamp(-2, 2).item())
        nodes = max(4, round(size(step) * tail))
        dense = (torch.rand(1, generator=g) > 0.5).float()
        graph = (torch.rand(nodes, nodes, generator=g) < 0.15 + 0.05 * dense).float()
        return graph, torch.rand(nodes, 4, generator=g), dense

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        graph, x, label = batch
        return functional.binary_cross_entropy_with_logits(model(graph, x).float(), label)

    return model, loss_fn, batch_fn, optimizer, steps
