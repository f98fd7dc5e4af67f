"""A graph network: messages are summed over neighbours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.zoo.base import Job, PlantedFailure, in_full, in_half, noise, seeded

EDGES = torch.tensor([[1, 2, 3, 4, 5], [0, 0, 0, 0, 0]])


class Convolution(nn.Module):
    """Sums messages in the dtype in which they come."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        source, target = EDGES
        message = self.linear(x)[source]
        total = torch.zeros(x.shape, dtype=message.dtype)
        return total.index_add(0, target, message)  # <- graph-degree-sum


class Normalised(Convolution):
    """Divides by the root of the degree, also where there is no edge."""

    def forward(self, x: Tensor) -> Tensor:
        _, target = EDGES
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
        scale = degree.pow(-0.5)  # <- graph-isolated-node
        out: Tensor = self.linear(x) * scale[:, None]
        return out - out


class Distance(Convolution):
    """Distances between nodes, one of them to itself."""

    def forward(self, x: Tensor) -> Tensor:
        moved = self.linear(x)
        gap: Tensor = moved[:, None] - moved[None]
        return gap.pow(2).sum(-1).sqrt()  # <- graph-distance


class Net(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embed, self.layer = nn.Linear(8, 8), layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.embed(x))
        return out


def degree_sum(seed: int) -> Job:
    model = seeded(seed, lambda: Net(Convolution()))
    assert isinstance(model.layer, Convolution)
    nn.init.constant_(model.layer.linear.bias, 30000.0)
    return Job(model, in_half, noise(seed, 6, 8))


def isolated_node(seed: int) -> Job:
    return Job(seeded(seed, lambda: Net(Normalised())), in_full, noise(seed, 6, 8))


def distance(seed: int) -> Job:
    return Job(seeded(seed, lambda: Net(Distance())), in_full, noise(seed, 6, 8))


PLANTED_FAILURES = (
    PlantedFailure("graph-degree-sum", degree_sum, "index_add", "layer"),
    PlantedFailure("graph-isolated-node", isolated_node, "pow", "layer"),
    PlantedFailure("graph-distance", distance, "sqrt", "layer", "backward"),
)
