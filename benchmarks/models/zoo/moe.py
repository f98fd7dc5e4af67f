"""A mixture of experts with its router."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.zoo.base import Job, PlantedFailure, in_full, noise, seeded


class Router(nn.Module):
    """A softmax by hand, without taking the maximum off first."""

    def __init__(self, gain: float = 1000.0) -> None:
        super().__init__()
        self.linear, self.gain = nn.Linear(8, 4), gain

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.exp(self.linear(x) * self.gain)  # <- moe-router
        return weight / weight.sum(-1, keepdim=True)


class Entropy(Router):
    """p log p of experts that nobody chose."""

    def forward(self, x: Tensor) -> Tensor:
        p = torch.softmax(self.linear(x) * self.gain, -1)
        log_p = p.log()  # <- moe-entropy
        return p * log_p


class InPlace(Router):
    """Gates that a threshold has set to zero, divided in place."""

    def forward(self, x: Tensor) -> Tensor:
        gates = torch.softmax(self.linear(x), -1)
        gates = gates * (gates > 2)
        gates.div_(gates.sum(-1, keepdim=True))  # <- moe-in-place
        return gates


class Mixture(nn.Module):
    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.router = router
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        mixed: Tensor = (outputs * self.router(x)[:, None]).sum(-1)
        return mixed


def router(seed: int) -> Job:
    return Job(seeded(seed, lambda: Mixture(Router())), in_full, noise(seed, 4, 8))


def entropy(seed: int) -> Job:
    return Job(seeded(seed, lambda: Mixture(Entropy())), in_full, noise(seed, 4, 8))


def in_place(seed: int) -> Job:
    return Job(seeded(seed, lambda: Mixture(InPlace())), in_full, noise(seed, 4, 8))


PLANTED_FAILURES = (
    PlantedFailure("moe-router", router, "exp", "router"),
    PlantedFailure("moe-entropy", entropy, "log", "router"),
    PlantedFailure("moe-in-place", in_place, "div", "router"),
)
