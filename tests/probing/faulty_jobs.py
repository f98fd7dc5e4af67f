"""Jobs whose fault no range of a module shows: in the loss function, or swallowed. Each is an ENTRY."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from halfguard import Workload


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 16), nn.Embedding(20, 16)
        self.mix = nn.Linear(16, 16)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        score: Tensor = (self.mix(self.users(user)) * self.items(item)).sum(-1)
        return score.to(
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        )


def pairwise(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    user, liked, other = batch
    chance = torch.sigmoid(model(user, liked) - model(user, other))
    return -torch.log(chance + 1e-8).mean()  # <- loss-function


def recommender(seed: int) -> Workload:
    """A loss that takes the logarithm of a probability: 0 in half for one of the later batches."""
    torch.manual_seed(seed)
    model = Recommender()
    draw = torch.Generator().manual_seed(seed)
    batches = [tuple(torch.randint(20, (8,), generator=draw) for _ in range(3)) for _ in range(8)]
    with torch.no_grad():
        for table in (model.users, model.items):
            table.weight[:17].mul_(0.3)
            table.weight[17:].mul_(4)
    batches[:3] = [tuple(part % 17 for part in batch) for batch in batches[:3]]
    return Workload(model, pairwise, batches, torch.optim.SGD(model.parameters(), lr=1e-3))


class OwnNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)  # <- swallowed-in-module


def _batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(4):
        x = torch.randn(16, 16, generator=draw)
        batches.append((x, (x[:, 0] > 0).long()))
        x[::4] *= 1000
    return batches


def own_norm(seed: int) -> Workload:
    """An RMS norm of one's own, with loud samples."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), OwnNorm(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    return Workload(model, _classify, _batches(seed), optimizer)


def _classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]).float(), batch[1])


def _robust(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    error: Tensor = model(batch[0]) - batch[1][:, None]
    return (1 - 1e5 / (1e5 + error * error)).mean()  # <- swallowed-in-loss


def robust_loss(seed: int) -> Workload:
    """A robust loss whose square overflows: every loud sample counts 1 and teaches nothing."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    return Workload(model, _robust, _batches(seed), torch.optim.SGD(model.parameters(), lr=1e-4))


class OneForward(nn.Module):
    """All operations in the model's own forward: no module inside covers the fault."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = x @ self.weight
        return hidden / torch.sqrt((hidden * hidden).mean(-1, keepdim=True) + 1e-6)


def whole_model(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = OneForward()
    return Workload(model, _classify, _batches(seed), torch.optim.SGD(model.parameters(), lr=1e-3))


def half_weights(seed: int) -> Workload:
    """Weights in FP16, and an overflow: there is no FP32 run to compare with."""
    torch.manual_seed(seed)
    model = nn.Linear(16, 2).half()
    loss: Callable[[Any, Any], Tensor] = lambda model, x: (model(x) * 1e5).float().mean()  # noqa: E731
    data = [torch.ones(4, 16).half()]
    return Workload(model, loss, data, torch.optim.SGD(model.parameters(), lr=1e-3))


def failing_in_fp32(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = nn.Linear(16, 2)
    loss: Callable[[Any, Any], Tensor] = lambda model, x: torch.log(model(x) * 0).mean()  # noqa: E731
    return Workload(model, loss, [torch.ones(4, 16)], torch.optim.SGD(model.parameters(), lr=1e-3))


def vanishing_gradients(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = nn.Linear(16, 2)
    loss: Callable[[Any, Any], Tensor] = lambda model, x: model(x).float().mean() * 1e-9  # noqa: E731
    return Workload(model, loss, [torch.ones(4, 16)], torch.optim.SGD(model.parameters(), lr=1e-3))
