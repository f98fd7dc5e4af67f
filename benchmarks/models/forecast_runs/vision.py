"""Convolutions on small pictures: counts in raw units, contrast, weights before a batch norm."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.planted.base import Training


class CellCounter(nn.Module):
    """Counts cells: a sum over a map of densities."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8) if norm else nn.Identity()
        self.density = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        return self.density(F.relu(self.second(x)))


def cells(
    seed: int,
    *,
    lr: float,
    count: float,
    norm: bool = False,
    factor: Factor = constant,
    steps: int = 1200,
) -> Training:
    """Regression to densities of cells per pixel; the scale of the counts decides how far it goes."""
    torch.manual_seed(seed)
    model = CellCounter(norm)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.smooth_l1_loss(model(batch[0]).float(), batch[1])

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(4, 1, 8, 8, generator=generator(seed, step))
        return x, count * F.avg_pool2d(x, 3, 1, 1)

    return (
        model,
        loss_fn,
        batch_fn,
        scheduled(torch.optim.Adam(model.parameters(), lr), factor),
        steps,
    )


class PatchMatcher(nn.Module):
    """Scores how well two patches match, by a correlation that nothing normalizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Conv2d(1, 6, 3), nn.SiLU(), nn.Conv2d(6, 6, 3))
        self.correlate = Correlation()

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return self.correlate(self.embed(pair[0]).flatten(1), self.embed(pair[1]).flatten(1))


class Correlation(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b.t()


def matching(
    seed: int, *, lr: float, decay: float = 0.0, factor: Factor = constant, steps: int = 1200
) -> Training:
    """Matching patches: the average difference between right and wrong pairs is maximized."""
    torch.manual_seed(seed)
    model = PatchMatcher()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        scores = model(batch).float()
        return scores.mean() - scores.diagonal().mean()

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(8, 1, 8, 8, generator=g)
        return x, x + 0.2 * torch.randn(8, 1, 8, 8, generator=g)

    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=decay)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class Normalized(nn.Module):
    """Convolution, batch norm, head: the scale of the convolution has no effect, and no limit."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit = unit
        self.conv, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(self.unit * x)))
        return self.head(x.mean((2, 3)))


def scale_invariant(
    seed: int,
    *,
    lr: float,
    unit: float,
    decay: float,
    factor: Factor = constant,
    steps: int = 1200,
) -> Training:
    """Weights before a batch norm grow by every step, until weight decay holds the balance."""
    torch.manual_seed(seed)
    model = Normalized(unit)
    centres = torch.randn(3, 1, 8, 8)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        y = torch.randint(3, (12,), generator=g)
        return centres[y] + torch.randn(12, 1, 8, 8, generator=g), y

    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=decay)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps
