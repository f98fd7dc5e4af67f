"""Runs whose largest output drifts towards the end of FP16, and runs that only look as if."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from halfguard.probing.training import RunSetting, train
from halfguard.workload import Workload

LIMIT = 65504.0


def drifting(seed: int) -> list[float]:
    """A straight line in log2 under noise of various sizes and memories, until it overflows."""
    rng = random.Random(seed)
    noise, memory = rng.choice([0.05, 0.1, 0.2, 0.4]), rng.choice([0.0, 0.3, 0.7])
    level, rate = rng.uniform(0, 4), math.log2(LIMIT) / rng.uniform(150, 900)
    values, error = list[float](), 0.0
    while not values or values[-1] <= LIMIT:
        error = memory * error + rng.gauss(0, noise)
        values.append(2 ** (level + rate * len(values) + error))
    return values


def _restless(rng: random.Random) -> Iterator[float]:
    level, error = rng.uniform(0, 14), 0.0
    while True:
        error = 0.8 * error + rng.gauss(0, 0.2)
        yield level + error


def _warming(rng: random.Random) -> Iterator[float]:
    level, step = rng.uniform(0, 8), 0
    while True:
        yield level + 4 * (1 - math.exp(-step / 40)) + rng.gauss(0, 0.2)
        step += 1


def _walking(rng: random.Random) -> Iterator[float]:
    level = rng.uniform(0, 10)
    while True:
        level += rng.gauss(0, 0.05)
        yield level


def _spiking(rng: random.Random) -> Iterator[float]:
    level = rng.uniform(0, 11)
    while True:
        yield level + rng.gauss(0, 0.3) + 3 * (rng.random() < 0.01)


def _slowing(rng: random.Random) -> Iterator[float]:
    level, step = rng.uniform(0, 8), 0
    while True:
        yield level + math.log2(1 + step / 10) / 2 + rng.gauss(0, 0.1)
        step += 1


STABLE: tuple[Callable[[random.Random], Iterator[float]], ...] = (
    _restless,
    _warming,
    _walking,
    _spiking,
    _slowing,
)


def stable(seed: int, steps: int = 800) -> list[float]:
    """Every kind in turn, none of which overflows."""
    levels = STABLE[seed % len(STABLE)](random.Random(seed))
    return [2 ** min(next(levels), 15.9) for _ in range(steps)]


def trained(rate: float, *, seed: int, steps: int) -> list[float]:
    """The largest output of a real linear regression by SGD; it diverges if the rate is above 2/3."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 8, generator=generator)
    x = torch.linalg.qr(x).Q * math.sqrt(16)  # so that the curvature is the same in all directions
    y = torch.randn(16, 1, generator=generator)
    model = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.randn(1, 8, generator=generator))

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        distance: Tensor = net(batch[0]) - batch[1]
        return distance.square().mean() * 1.5

    batches = [(x, y + torch.randn(16, 1, generator=generator)) for _ in range(8)]
    workload = Workload(model, loss, batches, torch.optim.SGD(model.parameters(), rate))
    run = train(workload, RunSetting(), steps, detail="health")
    return [next(step.at("output")).absmax for step in run.trace]
