"""Policies, forecasts and regression with losses of their own."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


class Actor(nn.Module):
    """Chooses one of six actions from positions in pixels."""

    def __init__(self, states: int = 8, actions: int = 6) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(states, 64), nn.Tanh(), nn.Linear(64, actions))
        self.net[2].weight.data.mul_(20)  # type: ignore[operator, union-attr]

    def forward(self, state: Tensor) -> Tensor:
        return self.net(state)


def policy_loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    state, action, advantage = batch
    logits = model(state)
    log_p = torch.log_softmax(logits, -1).gather(1, action[:, None]).squeeze(1)
    p = torch.softmax(logits, -1).to(logits.dtype)
    entropy = -(p * torch.log(p)).sum(-1)
    return -(advantage * log_p + 0.01 * entropy).mean()


def actor_entropy(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Actor()
    goals = torch.randn(8, 6)
    batches = []
    for _ in range(50):
        state = 100 * torch.randn(64, 8)
        action = (state @ goals).argmax(-1)
        batches.append((state, action, torch.rand(64) + 0.5))
    return Workload(
        model, policy_loss, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )


class Forecast(nn.Module):
    """The return of the next day, from the last ten."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, past: Tensor) -> Tensor:
        hidden, _ = self.lstm(past[..., None])
        return self.out(hidden[:, -1]).squeeze(-1)


def correlation_loss(model: nn.Module, batch: Batch) -> Tensor:
    past, future = batch
    guess = model(past)
    a, b = guess - guess.mean(), (future - future.mean()).type_as(guess)
    spread = torch.sqrt((a * a).mean() * (b * b).mean() + 1e-8)
    return 1 - (a * b).mean() / spread


def lstm_correlation(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Forecast()
    batches = []
    for _ in range(50):
        days = 0.02 * torch.randn(48, 11)
        days[:, 10] = 0.6 * days[:, 9] - 0.4 * days[:, 8] + 0.2 * days[:, 10]
        batches.append((days[:, :10], days[:, 10]))
    return Workload(
        model, correlation_loss, batches, torch.optim.Adam(model.parameters(), lr=1e-2), seed=seed
    )


class Heteroscedastic(nn.Module):
    """A mean and a standard deviation, which starts small: the model trusts its prior."""

    def __init__(self, features: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 48), nn.Tanh())
        self.mean, self.std = nn.Linear(48, 1), nn.Linear(48, 1)
        nn.init.constant_(self.std.bias, -9.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.mean(h), torch.sigmoid(self.std(h))


def gaussian_nll(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    mean, std = model(x)
    variance = std * std + 1e-8
    return 0.5 * ((y - mean) ** 2 / variance + torch.log(variance)).mean()


def heteroscedastic_nll(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Heteroscedastic()
    direction = torch.randn(6, 1)
    batches = []
    for _ in range(50):
        x = torch.randn(64, 6)
        batches.append((x, (x @ direction).tanh() + 0.05 * torch.randn(64, 1)))
    return Workload(
        model, gaussian_nll, batches, torch.optim.Adam(model.parameters(), lr=2e-2), seed=seed
    )


class Consumption(nn.Module):
    """Watts of a house from the weather."""

    def __init__(self, features: int = 6) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return 500 * self.net(x)


def pseudo_huber(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    guess = model(x)
    r = guess - y.type_as(guess)
    return (torch.sqrt(1 + r * r) - 1).mean()


def consumption_huber(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Consumption()
    batches = []
    for _ in range(50):
        x = torch.rand(64, 6)
        batches.append((x, 4000 + 2000 * x[:, :1] - 1000 * x[:, 1:2] * x[:, 2:3]))
    return Workload(
        model, pseudo_huber, batches, torch.optim.Adam(model.parameters(), lr=1e-2), seed=seed
    )
