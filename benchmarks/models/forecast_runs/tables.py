"""Tables: products of features, experts with a router, triplets, rates of events."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.planted.base import Training


class Interactions(nn.Module):
    """A factorization machine: products of two views of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(10, 12), nn.Linear(10, 12)
        self.product, self.out = Product(), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.product(self.left(x), self.right(x)))


class Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


def revenue(
    seed: int,
    *,
    lr: float,
    unit: float,
    noise: float = 0.0,
    factor: Factor = constant,
    steps: int = 1000,
) -> Training:
    """Squared error of revenues, divided by their mean so that the loss is a number near 1."""
    torch.manual_seed(seed)
    model = Interactions()
    taste = torch.randn(10)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return ((model(batch[0]).float() - batch[1]) / unit).square().mean()

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.rand(32, 10, generator=g)
        scatter = torch.exp(noise * torch.randn(32, 1, generator=g))
        return x, unit * scatter * (1 + 0.2 * (x @ taste)[:, None])

    optimizer = torch.optim.Adam(model.parameters(), lr)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class Router(nn.Module):
    """Chooses among four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.router(x)


def routing(
    seed: int,
    *,
    lr: float,
    z_loss: float = 0.0,
    decay: float = 0.0,
    factor: Factor = constant,
    steps: int = 1000,
) -> Training:
    """A router that is paid by utility before its softmax; ``z_loss`` keeps its logits small."""
    torch.manual_seed(seed)
    model = Router()
    worth = torch.randn(6, 4)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        logits = model(batch).float()
        utility = batch @ worth
        reward = (logits * (utility - utility.mean(1, keepdim=True))).sum(1).mean()
        return z_loss * torch.logsumexp(logits, 1).square().mean() - reward

    def batch_fn(step: int) -> Tensor:
        return torch.randn(24, 6, generator=generator(seed, step))

    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=decay)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8))
        self.distance = SquaredDistance()

    def forward(self, x: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        anchor, near, far = (self.body(part) for part in x)
        return self.distance(anchor, far) - self.distance(anchor, near)


class SquaredDistance(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        difference = a - b
        return torch.einsum("nd,nd->n", difference, difference)


def triplets(
    seed: int,
    *,
    lr: float,
    margin: float | None = None,
    soft: bool = False,
    decay: float = 0.0,
    factor: Factor = constant,
    steps: int = 1000,
) -> Training:
    """Triplets by squared distances, with a margin, a soft margin or none."""
    torch.manual_seed(seed)
    model = Encoder()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        gap = model(batch).float()
        if soft:
            return F.softplus(-gap).mean()
        return -gap.mean() if margin is None else F.relu(margin - gap).mean()

    def batch_fn(step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(16, 8, generator=g)
        return x, x + 0.2 * torch.randn(16, 8, generator=g), torch.randn(16, 8, generator=g)

    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=decay)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class EventRate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.log_rate = nn.Linear(6, 24), nn.Linear(24, 1)
        self.rate = Exponential()

    def forward(self, x: Tensor) -> Tensor:
        return self.rate(self.log_rate(torch.tanh(self.body(x))))


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp().type_as(x)


def event_rates(
    seed: int, *, lr: float, rate: float, factor: Factor = constant, steps: int = 1000
) -> Training:
    """Poisson regression of counts; the rate is the exponential of a linear layer."""
    torch.manual_seed(seed)
    model = EventRate()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        guess = model(batch[0]).float()
        return (guess - batch[1] * torch.log(guess + 1e-6)).mean() / rate

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.rand(32, 6, generator=g)
        return x, torch.poisson(rate * torch.exp(x[:, :1] - 0.5), generator=g)

    optimizer = torch.optim.Adam(model.parameters(), lr)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps
