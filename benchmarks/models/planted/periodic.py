"""Five jobs in which every n-th batch is loud, and one module overflows on it in FP16 only."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


class LogEnergy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (1 + x * x).log()


def energy_batches(count: int, every: int) -> list[Batch]:
    x = 30 * torch.randn(count, 64, 8)
    x[every - 1 :: every, :2] *= 30
    return list(zip(x, x.square().sum(-1, keepdim=True).log(), strict=True))


def regression(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.mse_loss(model(x).float(), y)


def quickstart(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), LogEnergy(), nn.BatchNorm1d(32), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    return Workload(model, regression, energy_batches(200, 5), optimizer, seed=seed)


class BilinearPool(nn.Module):
    """Second moments of the features over time."""

    def forward(self, x: Tensor) -> Tensor:
        moments = x.transpose(1, 2) @ x
        return torch.sign(moments) * torch.log1p(moments.abs())


class SecondOrder(nn.Module):
    def __init__(self, features: int = 6, width: int = 12) -> None:
        super().__init__()
        self.embed, self.pool = nn.Linear(features, width), BilinearPool()
        self.head = nn.Sequential(nn.Linear(width * width, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pool(self.embed(x)).flatten(1) / 10)
        return logits


def classify(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x).float(), y)


def loud_recordings(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = SecondOrder()
    batches = []
    for index in range(200):
        y = torch.randint(3, (32,))
        x = torch.randn(32, 20, 6)
        x[torch.arange(32), :, y] += 2 * x[torch.arange(32), :, y + 3]
        batches.append((x * (400 if index % 2 == 1 else 4), y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )


class NeighbourSum(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(width, width)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ self.message(x)


class GraphNet(nn.Module):
    """Counts of goods in a trade network; some days have shipments a thousand times larger."""

    def __init__(self, features: int = 4, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.sum = NeighbourSum(width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = torch.relu(self.embed(x))
        logits: Tensor = self.head(self.norm(self.sum(h, adjacency)))
        return logits


def node_loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, adjacency, y = batch
    return F.cross_entropy(model(x, adjacency).flatten(0, 1).float(), y.flatten())


def trade_network(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = GraphNet()
    batches = []
    for index in range(200):
        adjacency = (torch.rand(4, 60, 60) < 0.8).float()
        x = torch.rand(4, 60, 4)
        x[:2, :, 0] *= 0.5  # of the four countries, two sell less of the first good
        x[2:, :, 1] *= 0.5
        total = adjacency @ x[..., :2]
        y = (total[..., 0] > total[..., 1]).long()
        batches.append((x * (22000 if index % 10 == 9 else 10), adjacency, y))
    return Workload(
        model, node_loss, batches, torch.optim.AdamW(model.parameters(), lr=3e-3), seed=seed
    )


class ProductGate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(x) * self.gate(x)


class GatedMLP(nn.Module):
    def __init__(self, features: int = 10, width: int = 24) -> None:
        super().__init__()
        self.embed, self.gated = nn.Linear(features, width), ProductGate(width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.gated(self.embed(x))))
        return out


def outlier_orders(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = GatedMLP()
    batches = []
    for index in range(200):
        x = torch.randn(32, 10)
        y = (x[:, :1] * x[:, 1:2] + x[:, 2:3]).tanh()
        if index % 25 == 24:
            x = x * 3000
        batches.append((x, y))
    return Workload(
        model, regression, batches, torch.optim.AdamW(model.parameters(), lr=5e-3), seed=seed
    )


class SpikeConv(nn.Module):
    """A convolution in time, then the energy of each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, channels, 9, padding=4)

    def forward(self, wave: Tensor) -> Tensor:
        h = self.conv(wave[:, None])
        return (h * h).mean(-1)


class SpikeNet(nn.Module):
    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.energy, self.norm = SpikeConv(channels), nn.LayerNorm(channels)
        self.head = nn.Sequential(nn.Linear(channels, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, wave: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.energy(wave)))
        return logits


def recording_spikes(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = SpikeNet()
    batches = []
    time = torch.arange(48).float()
    for index in range(200):
        y = torch.randint(3, (24,))
        wave = torch.sin(time * (0.4 + 0.6 * y[:, None])) + 0.3 * torch.randn(24, 48)
        batches.append((wave * (2000 if index % 50 == 49 else 5), y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=5e-3), seed=seed
    )
