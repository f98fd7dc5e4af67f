"""The zoo's planted failures as ENTRY functions: ``tests.replaying.jobs:mlp_matmul`` takes a seed.

Some jobs are only here: one bad sample among many, random numbers in the step, several micro-batches.
``CASES`` are all jobs that break a guarded FP16 step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from benchmarks.models.zoo import PLANTED_FAILURES as ZOO
from benchmarks.models.zoo import Job, PlantedFailure
from benchmarks.models.zoo.base import in_half, noise, seeded
from torch import Tensor, nn

from halfguard.workload import Workload


@dataclass(frozen=True)
class Case:
    """A planted failure as a guarded step: configuration, and the samples that cause it."""

    plant: PlantedFailure
    samples: tuple[int, ...] = ()
    micro_batch: int = 0
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.plant.name.replace("-", "_")

    def __str__(self) -> str:
        return self.plant.name


def mean(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean of the outputs, in the precision that the guard chose."""
    out: Tensor = model(batch)
    return out.float().mean()


class Dropped(nn.Module):
    """Draws random numbers, and overflows if one row is large."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(self.drop(x)))
        out: Tensor = self.down(hidden)  # <- sample-large
        return out + self.norm(x).mean()


class Energy(nn.Module):
    """Squares in half: 300 squared overflows."""

    def forward(self, x: Tensor) -> Tensor:
        energy = x * x  # <- sample-energy
        return energy / energy.sum(-1, keepdim=True)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        share: Tensor = self.proj(x)
        return share / share.sum(-1, keepdim=True)  # <- sample-share


class Shares(nn.Module):
    """Divides by a sum that is zero for a row of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Inner(), nn.Linear(8, 2)
        nn.init.zeros_(self.inner.proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x))


def large(seed: int) -> Job:
    x = noise(seed, 16, 8)
    x[11] *= 2e3
    model = seeded(seed, Dropped)
    assert isinstance(model, Dropped)
    nn.init.constant_(model.down.weight, 100.0)
    return Job(model, mean, x)


def energy(seed: int) -> Job:
    x = noise(seed, 12, 8)
    x[2] *= 2000
    x[9] *= 2000
    model = seeded(seed, lambda: nn.Sequential(nn.Linear(8, 8), Energy(), nn.Linear(8, 2)))
    return Job(model, mean, x)


def share(seed: int) -> Job:
    x = noise(seed, 8, 8)
    x[5] = 0.0
    return Job(seeded(seed, Shares), mean, x)


PLANTED_FAILURES = (
    PlantedFailure("sample-large", large, "addmm", "down"),
    PlantedFailure("sample-energy", energy, "mul", "1"),
    PlantedFailure("sample-share", share, "div", "inner"),
)
BAD_SAMPLES = {
    "sample-large": (11,),
    "sample-energy": (2, 9),
    "sample-share": (5,),
    "conv-blank-image": (1,),
    "norm-eps": (1,),
    "recommender-bad-input": (1,),
    "recommender-embedding-row": (1,),
}
# Under the guard's autocast, the first operation on a bad input is the cast before the product.
UNDER_AUTOCAST = {"recommender-bad-input": "to"}
# No precision, no operation of halfguard and no smaller batch makes these finite.
INCURABLE = ("mlp-cast", "conv-one-sample", "rnn-exp", "vae-exp")
SLOW = ("mlp-compiled",)  # the compiler is run for every trial
ALL = tuple(
    replace(plant, op=UNDER_AUTOCAST.get(plant.name, plant.op))
    for plant in (*ZOO, *PLANTED_FAILURES)
    if plant.name not in SLOW
)
# A loss scale that is too high is no incident while it can fall. So it starts at its floor if the forward
# pass is finite.
FIXED = {"scale": {"init": 1024.0, "floor": 1024.0}}


def _case(plant: PlantedFailure) -> Case:
    config: dict[str, Any] = FIXED if plant.phase == "backward" else {"scale": {"init": 1024.0}}
    if plant.name == "sample-large":  # the second of two micro-batches, with random numbers in each
        return Case(plant, BAD_SAMPLES[plant.name], 1, {**config, "accumulate": 2})
    return Case(plant, BAD_SAMPLES.get(plant.name, ()), config=config)


CASES = tuple(map(_case, ALL))


def workload(plant: PlantedFailure, seed: int) -> Workload:
    job = plant.make(seed)
    if job.loss_fn is in_half:  # the zoo runs in half itself; here the guard does
        job = job._replace(loss_fn=mean)
    optimizer = torch.optim.SGD(job.model.parameters(), lr=0.1)
    batches = [job.batch]
    if plant.name == "sample-large":
        batches.insert(0, noise(seed + 1, 16, 8))
    return Workload(job.model, job.loss_fn, batches, optimizer)


def _entry(plant: PlantedFailure) -> Any:
    return lambda seed: workload(plant, seed)


for _plant in ALL:
    globals()[_plant.name.replace("-", "_")] = _entry(_plant)
