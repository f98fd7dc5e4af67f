"""More runs whose activations can grow: recurrent, convolutional, attentive, graphs, codes and gradients."""

# mypy: warn-return-any=False
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from benchmarks.models.planted.base import Training
from benchmarks.models.planted.growing import generator


class WindowEnergy(nn.Module):
    """Looks at a series through overlapping windows."""

    def __init__(self, window: int = 6, width: int = 24) -> None:
        super().__init__()
        self.window = window
        self.first, self.second = nn.Linear(window, width), nn.Linear(width, width)
        self.energy = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.second(F.silu(self.first(x.unfold(1, self.window, 3)))))
        return self.energy(h.mean(1))


def energy_model(seed: int, *, lr: float, penalty: float = 0.0, steps: int = 600) -> Training:
    """An energy-based model by contrastive divergence; without a penalty energies have no scale."""
    torch.manual_seed(seed)
    model = WindowEnergy()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        data, noise = (model(x).float() for x in batch)
        return (data - noise).mean() + penalty * (data.pow(2) + noise.pow(2)).mean()

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        phase = 6 * torch.rand(16, 1, generator=g)
        return torch.sin(torch.arange(24) * 0.5 + phase), torch.randn(16, 24, generator=g)

    return model, loss_fn, batch_fn, torch.optim.Adam(model.parameters(), lr=lr), steps


class Accumulator(nn.Module):
    """Adds up what it reads; the factor of the last state is learned."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.enter, self.recur = nn.Linear(3, width), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1)
        self.recur.weight.data = 0.9 * torch.eye(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        h = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            h = self.recur(h) + x[:, step]
        return self.out(h)


def recurrent_gain(seed: int, *, lr: float, target: float, steps: int = 500) -> Training:
    """A recurrent sum whose gain grows until it reaches totals in raw units."""
    torch.manual_seed(seed)
    model = Accumulator()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.l1_loss(model(x).float(), y)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(16, 10, 3, generator=generator(seed, step))
        return x, target * x.mean((1, 2))[:, None]

    return model, loss_fn, batch_fn, torch.optim.Adam(model.parameters(), lr=lr), steps


class NoisyCode(nn.Module):
    """An autoencoder whose code is sent over a noisy line."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise
        self.encoder = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.code, self.norm = nn.Linear(32, 6), nn.LayerNorm(6)
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 12))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        code = self.code(self.encoder(x))
        return self.decoder(self.norm(code.float() + self.noise * noise)), code


def noisy_code(
    seed: int, *, lr: float, noise: float = 30.0, power: float = 0.0, steps: int = 600
) -> Training:
    """A code that is made ever louder to be heard over noise; ``power`` is the price of loudness."""
    torch.manual_seed(seed)
    model = NoisyCode(noise)
    mixing = torch.randn(4, 12)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, disturbance = batch
        picture, code = model(x, disturbance)
        return F.mse_loss(picture.float(), x) + power * code.float().pow(2).mean()

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        return torch.randn(32, 4, generator=g) @ mixing, torch.randn(32, 6, generator=g)

    return model, loss_fn, batch_fn, torch.optim.Adam(model.parameters(), lr=lr), steps


class Stream(nn.Module):
    """Pre-norm blocks that write to a residual stream, which nothing limits."""

    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.writes = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
            for _ in range(depth)
        )
        self.probe = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for norm, write in zip(self.norms, self.writes, strict=True):
            h = h + write(norm(h))
        return self.probe(h)


def margin_stream(
    seed: int, *, lr: float, margin: float = float("inf"), steps: int = 600
) -> Training:
    """A classifier of signs that is rewarded for confidence in proportion, up to a margin."""
    torch.manual_seed(seed)
    model = Stream()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return -(model(x).float() * y).clamp(max=margin).mean()

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 6, generator=generator(seed, step))
        return x, (x[:, :1] - x[:, 1:2]).sign()

    return model, loss_fn, batch_fn, torch.optim.Adam(model.parameters(), lr=lr), steps


class GraphScore(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed, self.message = nn.Linear(4, width), nn.Linear(width, width)
        self.pool, self.head = SumPool(), nn.Linear(width, 1)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = torch.relu(self.embed(x))
        h = torch.relu(adjacency @ self.message(h))
        return self.head(self.pool(h) / x.shape[1])


class SumPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.transpose(1, 2) @ torch.ones_like(x[..., :1])).squeeze(-1)


def graph_totals(seed: int, *, lr: float, target: float, steps: int = 600) -> Training:
    """A graph network with sums over neighbours and nodes, trained on totals."""
    torch.manual_seed(seed)
    model = GraphScore()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, adjacency, y = batch
        return F.l1_loss(model(x, adjacency).float(), y)

    def batch_fn(step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.rand(8, 16, 4, generator=g)
        adjacency = (torch.rand(8, 16, 16, generator=g) < 0.4).float()
        return x, adjacency, target * (adjacency @ x).mean((1, 2))[:, None] / 3

    return model, loss_fn, batch_fn, torch.optim.Adam(model.parameters(), lr=lr), steps


class LargeConstant(nn.Module):
    """Features in raw units, normalized only after the first layer."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(8, 24), nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 3)
        self.enter.weight.data.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.enter(x))))


def large_constant(
    seed: int, *, gain: float, noise: float = 0.0, lr: float = 1e-3, steps: int = 600
) -> Training:
    """Large values that do not grow; with ``noise`` the loudness of batches varies."""
    torch.manual_seed(seed)
    model = LargeConstant(gain)
    centres = torch.randn(3, 8)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.cross_entropy(model(x).float(), y)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        y = torch.randint(3, (24,), generator=g)
        loud = torch.exp(noise * torch.randn(1, generator=g).clamp(-2, 2))
        x = centres[y] + torch.randn(24, 8, generator=g).clamp(-3, 3)
        return loud * x, y

    return model, loss_fn, batch_fn, torch.optim.AdamW(model.parameters(), lr=lr), steps


class Contrast(nn.Module):
    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.left, self.right = nn.Linear(10, 16), nn.Linear(10, 16)
        self.scale = nn.Parameter(torch.tensor(2.66))
        self.logits = Scaled()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
        return self.logits(a, b, self.scale.exp().clamp(max=self.limit))


class Scaled(nn.Module):
    def forward(self, a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        cosines = a @ b.t()
        return (scale * cosines).type_as(cosines)


def contrastive_scale(
    seed: int, *, lr: float, limit: float = float("inf"), linear: bool = False, steps: int = 600
) -> Training:
    """CLIP's learned temperature; ``linear`` rewards the difference of logits without end."""
    torch.manual_seed(seed)
    model = Contrast(limit)
    turn = torch.linalg.qr(torch.randn(10, 10))[0]
    towers = [*model.left.parameters(), *model.right.parameters()]
    groups: list[dict[str, Any]] = [{"params": [model.scale], "lr": lr}, {"params": towers}]
    optimizer = torch.optim.Adam(groups, lr=1e-3)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(*batch).float()
        if linear:
            return logits.mean() - logits.diagonal().mean()
        return F.cross_entropy(logits, torch.arange(len(logits)))

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        a = torch.randn(16, 10, generator=g)
        return a, a @ turn + 0.1 * torch.randn(16, 10, generator=g)

    return model, loss_fn, batch_fn, optimizer, steps
