"""Runs of losses that compare: critics, energies, triplets and contrastive pairs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.forecast_runs.third_layers import Exp, mlp, seeded
from benchmarks.models.planted.base import Training


class Gan(nn.Module):
    """Return the critic's scores of real and of generated points."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = mlp(4, 32, 32, 2)
        self.critic = mlp(2, 32, 32, 1, activation=nn.LeakyReLU)

    def forward(self, real: Tensor, noise: Tensor) -> Tensor:
        return torch.stack([self.critic(real), self.critic(self.generator(noise))])


def ring(g: torch.Generator, count: int, radius: float) -> Tensor:
    """Return points near eight places on a circle."""
    angle = torch.randint(8, (count,), generator=g) * (math.pi / 4)
    points = radius * torch.stack([angle.cos(), angle.sin()], -1)
    return points + 0.02 * radius * torch.randn(count, 2, generator=g)


def wasserstein(
    seed: int,
    lr: float,
    slower: float = 0.1,
    radius: float = 2.0,
    clip: float | None = None,
    steps: int = 900,
) -> Training:
    """Train a critic and a generator that is slower; ``clip`` limits the critic's weights."""
    seeded(seed)
    model = Gan()
    groups: list[dict[str, Any]] = [
        {"params": list(model.critic.parameters())},
        {"params": list(model.generator.parameters()), "lr": lr * slower, "maximize": True},
    ]
    optimizer = torch.optim.RMSprop(groups, lr=lr)

    def limit(*_: Any) -> None:
        with torch.no_grad():
            for weight in model.critic.parameters():
                weight.clamp_(-(clip or math.inf), clip or math.inf)

    optimizer.register_step_post_hook(limit)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        return ring(g, 64, radius), torch.randn(64, 4, generator=g)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        real, fake = model(*batch).float()
        loss: Tensor = fake.mean() - real.mean()
        return loss

    return model, loss_fn, batch_fn, optimizer, steps


def energy(
    seed: int, lr: float, penalty: float = 0.0, depth: int = 3, steps: int = 800
) -> Training:
    """Lower the energy of data and raise that of noise; ``penalty`` holds both near 0."""
    seeded(seed)
    model = mlp(2, *([48] * depth), 1, activation=nn.SiLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        return ring(g, 64, 2.0), 8 * torch.rand(64, 2, generator=g) - 4

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        data, noise = model(torch.cat(batch)).float().chunk(2)
        loss: Tensor = data.mean() - noise.mean()
        if penalty:
            loss = loss + penalty * (
                functional.mse_loss(data, 0 * data) + functional.mse_loss(noise, 0 * noise)
            )
        return loss

    return model, loss_fn, batch_fn, optimizer, steps


def triplets(
    seed: int,
    lr: float,
    margin: float | None = None,
    steps: int = 700,
    factor: Factor = constant,
) -> Training:
    """Learn distances between faces; without a margin nothing ends the push apart."""
    g = seeded(seed)
    people = torch.randn(30, 16, generator=g)
    model = mlp(16, 64, 64, 16)
    optimizer = scheduled(torch.optim.Adam(model.parameters(), lr=lr), factor)

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        anchor = torch.randint(30, (32,), generator=g)
        other = (anchor + torch.randint(1, 30, (32,), generator=g)) % 30
        faces = people[torch.cat([anchor, anchor, other])]
        return faces + 0.3 * torch.randn(faces.shape, generator=g)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        anchor, same, other = model(batch).float().chunk(3)
        apart = functional.pairwise_distance(anchor, same) - functional.pairwise_distance(
            anchor, other
        )
        return apart.mean() if margin is None else functional.relu(apart + margin).mean()

    return model, loss_fn, batch_fn, optimizer, steps


class Temperature(nn.Module):
    """Cosines of two kinds of features, times a learnt scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.project.weight)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.scale = Exp()
        self.logits = Logits()

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        image = functional.normalize(self.project(image), dim=-1)
        logits: Tensor = self.logits(
            image, functional.normalize(text, dim=-1), self.scale(self.log_scale)
        )
        return logits


class Logits(nn.Module):
    def forward(self, image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
        return scale * (image @ text.T)


def pairs(
    seed: int, lr: float, cone: float, noise: float = 0.1, eps: float = 1e-8, steps: int = 1000
) -> Training:
    """Match images and texts from frozen towers; all features point almost the same way.

    ``cone`` is the length of what they share; what tells them apart has length 1.
    """
    g = seeded(seed)
    width = 24
    axis = cone * functional.normalize(torch.randn(width, generator=g), dim=0)
    model = Temperature(width)
    groups: list[dict[str, Any]] = [
        {"params": [model.log_scale]},
        {"params": list(model.project.parameters()), "lr": lr * 1e-4},
    ]
    optimizer = torch.optim.Adam(groups, lr=lr, eps=eps)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        concept = functional.normalize(torch.randn(32, width, generator=g), dim=-1)
        views = [concept + noise * torch.randn(32, width, generator=g) for _ in range(2)]
        return axis + views[0], axis + views[1]

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(*batch).float()
        own = torch.arange(len(logits))
        return (functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)) / 2

    return model, loss_fn, batch_fn, optimizer, steps


def preferences(
    seed: int,
    beta: float,
    lr: float,
    mistakes: float = 0.0,
    steps: int = 900,
    factor: Factor = constant,
) -> Training:
    """Learn which of two answers people prefer; ``beta`` is the weight of a difference."""
    g = seeded(seed)
    taste = torch.randn(12, 1, generator=g)
    model = mlp(12, 48, 48, 1)
    optimizer = scheduled(torch.optim.Adam(model.parameters(), lr=lr), factor)

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        a, b = torch.randn(2, 48, 12, generator=g)
        swap = ((a - b) @ taste < 0) ^ (torch.rand(48, 1, generator=g) < mistakes)
        return torch.cat([torch.where(swap, b, a), torch.where(swap, a, b)])

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        better, worse = model(batch).float().chunk(2)
        return -functional.logsigmoid(beta * (better - worse)).mean() / beta

    return model, loss_fn, batch_fn, optimizer, steps
