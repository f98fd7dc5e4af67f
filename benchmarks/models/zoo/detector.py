"""A detector: a checkpointed backbone and a head that predicts sizes by their logarithm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.models.zoo.base import Job, PlantedFailure, in_full, noise, seeded


class Head(nn.Module):
    """Sizes in half: exp(12) is more than it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        size = self.linear(x).half() + 12
        return torch.exp(size)  # <- detector-size


class Block(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(8, 8), kind

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.linear(x)
        if self.kind == "forward":
            return torch.exp(hidden * 1000)  # <- detector-checkpoint-forward
        energy = (hidden - hidden.detach()).sum(-1, keepdim=True)
        if self.kind == "reentrant":
            return hidden * torch.sqrt(energy)  # <- detector-checkpoint-reentrant
        return hidden * torch.sqrt(energy)  # <- detector-checkpoint-backward


class Detector(nn.Module):
    def __init__(self, block: nn.Module, head: nn.Module, *, reentrant: bool = False) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(8, 8), block, head
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.block, self.stem(x), use_reentrant=self.reentrant)
        out: Tensor = self.head(hidden)
        return out


def size(seed: int) -> Job:
    model = seeded(seed, lambda: Detector(nn.Identity(), Head()))
    return Job(model, in_full, noise(seed, 4, 8))


def in_block(kind: str, seed: int) -> Job:
    reentrant = kind == "reentrant"
    model = seeded(seed, lambda: Detector(Block(kind), nn.Linear(8, 4), reentrant=reentrant))
    return Job(model, in_full, noise(seed, 4, 8))


def checkpoint_forward(seed: int) -> Job:
    return in_block("forward", seed)


def checkpoint_backward(seed: int) -> Job:
    return in_block("backward", seed)


def checkpoint_reentrant(seed: int) -> Job:
    return in_block("reentrant", seed)


PLANTED_FAILURES = (
    PlantedFailure("detector-size", size, "exp", "head"),
    PlantedFailure("detector-checkpoint-forward", checkpoint_forward, "exp", "block"),
    PlantedFailure(
        "detector-checkpoint-backward", checkpoint_backward, "sqrt", "block", "backward"
    ),
    PlantedFailure(
        "detector-checkpoint-reentrant", checkpoint_reentrant, "sqrt", "block", "backward"
    ),
)
