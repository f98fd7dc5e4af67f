"""Runs of reinforcement learning: values by bootstrapping, off-policy features, policies."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.forecast_runs.third_layers import mlp, seeded
from benchmarks.models.planted.base import Training


class Values(nn.Module):
    """Return a net's values of these states and its slow copy's of the next ones."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.slow = copy.deepcopy(net).requires_grad_(False)

    def forward(self, now: Tensor, then: Tensor) -> Tensor:
        return torch.stack([self.net(now), self.slow(then)])

    def follow(self, rate: float) -> None:
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, rate)


def bootstrap(
    seed: int,
    reward: float,
    gamma: float,
    lr: float,
    follow: float = 0.05,
    noise: float = 0.5,
    steps: int = 900,
    factor: Factor = constant,
) -> Training:
    """Learn the values of a walk from rewards in their own unit, with a slow target network."""
    seeded(seed)
    model = Values(mlp(3, 32, 32, 1))
    optimizer = torch.optim.Adam(model.net.parameters(), lr=lr)
    optimizer.register_step_post_hook(lambda *_: model.follow(follow))

    def batch_fn(step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(seed, step)
        now = torch.randn(32, 3, generator=g)
        then = 0.9 * now + 0.4 * torch.randn(32, 3, generator=g)
        gain = reward * (1 + 0.5 * now[:, :1] + noise * torch.randn(32, 1, generator=g))
        return now, then, gain

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        now, then, gain = batch
        value, later = model(now, then).float()
        return functional.smooth_l1_loss(value, gain + gamma * later.detach(), beta=reward)

    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


def off_policy(seed: int, lr: float, gamma: float, steps: int = 900, own: float = 0.0) -> Training:
    """Learn linear values of Baird's seven states off policy: from updates of all states alike.

    ``own`` is the share of the updates that follow the policy, which is what converges.
    """
    seeded(seed)
    features = torch.cat([2 * torch.eye(6), torch.zeros(6, 1)], -1)
    features = torch.cat([features, torch.tensor([[0.0] * 6 + [1.0]])])
    features = torch.cat([features, torch.tensor([[1.0]] * 6 + [[2.0]])], -1)
    model = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0] * 6 + [10.0, 1.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        states = torch.randint(7, (14,), generator=g)
        last = torch.rand(14, generator=g) < own
        return torch.where(last, torch.full_like(states, 6), states)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        values = model(torch.cat([features[batch], features[6:].expand(len(batch), -1)])).float()
        now, then = values.chunk(2)
        return functional.mse_loss(now, gamma * then.detach())

    return model, loss_fn, batch_fn, optimizer, steps


def throttle(
    seed: int,
    lr: float,
    cost: float = 0.0,
    spread: float = 1.0,
    clip: float = 10.0,
    steps: int = 800,
    factor: Factor = constant,
) -> Training:
    """Learn how much throttle to give by REINFORCE; ``cost`` is that of fuel, which grows faster."""
    seeded(seed)
    model = mlp(4, 48, 48, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def limit(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)

    optimizer.register_step_pre_hook(limit)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        return torch.randn(256, 4, generator=g), spread * torch.randn(256, 1, generator=g)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        state, noise = batch
        mean = model(state).float()
        action = mean.detach() + noise
        speed = action * (1 + 0.5 * state[:, :1].tanh())
        reward = speed - cost * action.square()
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        loss: Tensor = (advantage * (action - mean).square()).mean() / (2 * spread)
        return loss

    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps
