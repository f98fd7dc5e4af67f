"""Training runs whose activations can grow: critics, values, streams, scores, targets in raw units.

Every function returns a run from a seed and the settings that decide if it grows without end.
"""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from benchmarks.models.planted.base import Training


def generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * seed + step)


class Critic(nn.Module):
    def __init__(self, features: int = 16, hidden: int = 48) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.second(torch.relu(self.first(x))))
        score: Tensor = self.score(h)
        return score


def critic(seed: int, *, lr: float, decay: float = 0.0, steps: int = 600) -> Training:
    """A Wasserstein critic without clipping or gradient penalty, against a generator that stands still."""
    torch.manual_seed(seed)
    model = Critic()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        real, fake = batch
        return model(fake).float().mean() - model(real).float().mean()

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        return torch.randn(32, 16, generator=g) + 0.5, torch.randn(32, 16, generator=g)

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
    return model, loss_fn, batch_fn, optimizer, steps


class QNetwork(nn.Module):
    def __init__(self, states: int = 6, actions: int = 3) -> None:
        super().__init__()
        self.body, self.values = nn.Linear(states, 48), nn.Linear(48, actions)

    def forward(self, state: Tensor) -> Tensor:
        values: Tensor = self.values(torch.relu(self.body(state)))
        return values


def q_learning(
    seed: int, *, discount: float, lr: float, reward: float = 300.0, steps: int = 600
) -> Training:
    """Q-learning that bootstraps from itself, without a target network."""
    torch.manual_seed(seed)
    model = QNetwork()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        state, action, gain, after = batch
        with torch.no_grad():
            target = gain + discount * model(after).float().max(-1).values
        value = model(state).gather(1, action).squeeze(1)
        return F.smooth_l1_loss(value.float(), target, beta=100.0)

    def batch_fn(step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        g = generator(seed, step)
        state, after = torch.rand(64, 6, generator=g), torch.rand(64, 6, generator=g)
        action = torch.randint(3, (64, 1), generator=g)
        return state, action, reward * torch.rand(64, generator=g), after

    return model, loss_fn, batch_fn, torch.optim.Adam(model.parameters(), lr=lr), steps


class ResidualMLP(nn.Module):
    def __init__(self, width: int = 24, depth: int = 3, *, norm: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.norms = nn.ModuleList(
            nn.LayerNorm(width) if norm else nn.Identity() for _ in range(depth)
        )
        self.ups = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(torch.relu(up(norm(x))))
        out: Tensor = self.head(self.last(x))
        return out


def residual_stream(seed: int, *, lr: float, norm: bool = False, steps: int = 600) -> Training:
    """Residual blocks under a learning rate that is too high, on labels that are half noise."""
    torch.manual_seed(seed)
    model = ResidualMLP(norm=norm)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.mse_loss(model(x).float(), y)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(32, 8, generator=g)
        return x, x[:, :2].sum(1, keepdim=True) + torch.randn(32, 1, generator=g)

    return model, loss_fn, batch_fn, torch.optim.Adam(model.parameters(), lr=lr), steps


class Ranker(nn.Module):
    """Scores a document by the attention between its words and the query's, not normalized."""

    def __init__(self, features: int = 12, width: int = 24) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(features, width), nn.Linear(features, width)
        self.scores = Products()

    def forward(self, query: Tensor, words: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.query(query), self.key(words))
        return scores.amax(-1).mean(-1)


class Products(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1)


def ranking_scores(
    seed: int, *, lr: float, margin: float = float("inf"), steps: int = 600
) -> Training:
    """A ranking loss over unnormalized attention; without a margin it rewards ever larger scores."""
    torch.manual_seed(seed)
    model = Ranker()
    taste = torch.linalg.qr(torch.randn(12, 12))[0]

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        query, good, bad = batch
        difference = (model(query, good) - model(query, bad)).float()
        return -difference.clamp(max=margin).mean()

    def batch_fn(step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(seed, step)
        query = torch.randn(16, 4, 12, generator=g)
        good = query @ taste + 0.3 * torch.randn(16, 4, 12, generator=g)
        return query, good, torch.randn(16, 4, 12, generator=g)

    return model, loss_fn, batch_fn, torch.optim.Adam(model.parameters(), lr=lr), steps


class Regressor(nn.Module):
    def __init__(self, features: int = 10, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, hidden), nn.GELU())
        self.price = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        price: Tensor = self.price(self.body(x))
        return price


def raw_target(
    seed: int, *, target: float, lr: float, spread: float = 0.1, steps: int = 600
) -> Training:
    """Regression to prices that nobody divided by a unit: the output climbs to them."""
    torch.manual_seed(seed)
    model = Regressor()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.l1_loss(model(x).float(), y)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.rand(32, 10, generator=g)
        noise = 1 + spread * torch.randn(32, 1, generator=g)
        return x, target * (0.5 + x.mean(1, keepdim=True)) * noise

    return model, loss_fn, batch_fn, torch.optim.Adam(model.parameters(), lr=lr), steps


def overshoot(seed: int, *, lr: float, scale: float = 1.0, steps: int = 600) -> Training:
    """Least squares by SGD with a rate near the one at which it oscillates with growing amplitude."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 12, bias=False), nn.Linear(12, 4, bias=False))
    nn.init.orthogonal_(model[0].weight)  # type: ignore[arg-type]
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    goal = torch.randn(12, 4)
    basis = torch.linalg.qr(torch.randn(64, 12))[0] * 8  # whitened inputs: every direction alike

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.mse_loss(model(x).float(), y)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        x = scale * basis
        return x, x @ goal + torch.randn(64, 4, generator=generator(seed, step))

    parameters = [p for p in model.parameters() if p.requires_grad]
    return model, loss_fn, batch_fn, torch.optim.SGD(parameters, lr=lr), steps
