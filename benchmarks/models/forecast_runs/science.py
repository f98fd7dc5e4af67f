"""Curricula, flows, simulators and sensors."""

# mypy: warn-return-any=False
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.planted.base import Training


class Orbit(nn.Module):
    """Learns the field of a planet; squares of distances are features."""

    def __init__(self) -> None:
        super().__init__()
        self.square = Square()
        self.norm = nn.LayerNorm(3)
        self.net = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.norm(self.square(x.half() if torch.is_autocast_enabled("cpu") else x)))


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def curriculum(
    seed: int,
    *,
    radius: Callable[[int], float],
    lr: float = 3e-3,
    tails: float = 0.0,
    factor: Factor = constant,
    steps: int = 1200,
) -> Training:
    """Orbits whose radius follows a curriculum; with ``tails``, some probes fly far out."""
    torch.manual_seed(seed)
    model = Orbit()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]).float(), batch[1])

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(24, 3, generator=g).clamp(-2.5, 2.5)
        far = 1 + tails * torch.rand(24, 1, generator=g) ** 8
        return radius(step) * far * x, x.norm(dim=1, keepdim=True)

    return (
        model,
        loss_fn,
        batch_fn,
        scheduled(torch.optim.Adam(model.parameters(), lr), factor),
        steps,
    )


class Coupling(nn.Module):
    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.net = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        scale = self.limit * torch.tanh(scale / self.limit) if self.limit else scale
        return torch.cat([b * torch.exp(scale).type_as(scale) + shift, a], 1)


class Flow(nn.Module):
    def __init__(self, depth: int, limit: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(limit) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def flow(
    seed: int,
    *,
    lr: float,
    width: float,
    limit: float = 0.0,
    depth: int = 4,
    factor: Factor = constant,
    steps: int = 1200,
) -> Training:
    """A generator that is to cover a wide range: the log of its spread is trained to ``width``."""
    torch.manual_seed(seed)
    model = Flow(depth, limit)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        spread = model(batch).float().abs().mean(0).add(1e-3).log2()
        return (spread - width).abs().mean()

    def batch_fn(step: int) -> Tensor:
        return torch.randn(32, 4, generator=generator(seed, step))

    return (
        model,
        loss_fn,
        batch_fn,
        scheduled(torch.optim.Adam(model.parameters(), lr), factor),
        steps,
    )


class Sensor(nn.Module):
    """Readings in raw units through two layers, the second with its own gain."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 32), nn.Linear(32, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)
        self.first.weight.data.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.second(F.relu(self.first(x)))))


def sensor(
    seed: int,
    *,
    gain: float,
    loud: Callable[[int], float] = constant,
    noise: float = 0.0,
    spikes: float = 0.0,
    lr: float = 2e-3,
    factor: Factor = constant,
    steps: int = 1200,
) -> Training:
    """A classifier of loud signals: loudness by step, by chance, or in rare spikes."""
    torch.manual_seed(seed)
    model = Sensor(gain)
    centres = torch.randn(4, 6)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        y = torch.randint(4, (24,), generator=g)
        x = centres[y] + 0.5 * torch.randn(24, 6, generator=g).clamp(-2, 2)
        level = torch.exp(noise * torch.randn(1, generator=g).clamp(-2, 2)).item()
        if torch.rand(1, generator=g).item() < 0.03:
            level *= 1 + spikes
        return loud(step) * level * x, y

    return (
        model,
        loss_fn,
        batch_fn,
        scheduled(torch.optim.AdamW(model.parameters(), lr), factor),
        steps,
    )


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.body(x)))


def self_training(
    seed: int,
    *,
    gain: float,
    start: float,
    lr: float,
    factor: Factor = constant,
    steps: int = 1200,
) -> Training:
    """A student that learns from its own output times a gain; above 1 it talks itself up."""
    torch.manual_seed(seed)
    model = Student()
    mix = torch.randn(8, 8)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch).float()
        target = gain * out.detach() + start * (batch @ mix)
        return F.mse_loss(out, target) / (1 + out.detach().square().mean().sqrt())

    def batch_fn(step: int) -> Tensor:
        return torch.randn(24, 8, generator=generator(seed, step))

    return (
        model,
        loss_fn,
        batch_fn,
        scheduled(torch.optim.SGD(model.parameters(), lr), factor),
        steps,
    )
