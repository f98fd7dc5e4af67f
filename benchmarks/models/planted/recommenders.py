"""Recommenders: neural collaborative filtering, two towers, a factorization machine, deep and cross."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]
USERS, ITEMS = 200, 300


class NeuralCF(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.mlp = nn.Sequential(
            nn.Linear(3 * width, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        u, i = self.user(users), self.item(items)
        score: Tensor = self.mlp(torch.cat([u, i, u * i], -1)).squeeze(-1)
        return score


def bpr_loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    users, liked, other = batch
    difference = model(users, liked) - model(users, other)
    return -torch.log(torch.sigmoid(difference) + 1e-8).mean()


def ncf_bpr(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = NeuralCF()
    with torch.no_grad():
        model.mlp[4].weight.mul_(200)  # type: ignore[union-attr, operator]
    taste, kind = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
    batches = []
    for _ in range(50):
        users, a, b = (torch.randint(n, (128,)) for n in (USERS, ITEMS, ITEMS))
        better = (taste[users] * (kind[a] - kind[b])).sum(-1) > 0
        batches.append((users, torch.where(better, a, b), torch.where(better, b, a)))
    return Workload(
        model, bpr_loss, batches, torch.optim.Adam(model.parameters(), lr=2e-3), seed=seed
    )


class TwoTower(nn.Module):
    def __init__(self, features: int = 20, width: int = 16) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, width))
        self.item = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, query: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.query(query), dim=-1), F.normalize(self.item(item), dim=-1)


def in_batch_infonce(model: nn.Module, batch: Batch) -> Tensor:
    q, i = model(*batch)
    similarity = torch.exp(q @ i.t() / 0.07)
    ones = torch.ones(similarity.shape[1], 1, device=similarity.device)
    total = similarity @ ones
    return -torch.log(similarity.diagonal() / total.squeeze(1)).mean()


def two_tower_infonce(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = TwoTower()
    turn = torch.linalg.qr(torch.randn(20, 20))[0]
    batches = []
    for _ in range(50):
        query = torch.randn(32, 20)
        batches.append((query, query @ turn + 0.1 * torch.randn(32, 20)))
    return Workload(
        model, in_batch_infonce, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )


class FactorizationMachine(nn.Module):
    """Interactions of counts: clicks, views and seconds, not normalized."""

    def __init__(self, features: int = 24, rank: int = 16) -> None:
        super().__init__()
        self.factors = nn.Linear(features, rank, bias=False)
        self.norm, self.deep = nn.BatchNorm1d(rank), nn.Linear(rank, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, counts: Tensor) -> Tensor:
        summed = self.factors(counts)
        pairs = 0.5 * (summed * summed)
        logit: Tensor = self.head(torch.relu(self.deep(self.norm(pairs)))).squeeze(-1)
        return logit


def click_loss(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.binary_cross_entropy_with_logits(model(x).float(), y)


def factorization_machine(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = FactorizationMachine()
    batches = []
    for _ in range(50):
        x = torch.randint(0, 60, (64, 24)).float()
        x[:, :4] *= 10
        y = (x[:, :4].sum(-1) > 4 * 295).float()
        batches.append((x, y))
    return Workload(
        model, click_loss, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )


class CrossLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        return x0 * self.linear(x) + x


class DeepAndCross(nn.Module):
    def __init__(self, features: int = 16, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.crosses = nn.ModuleList(CrossLayer(width) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x0 = x = self.embed(x)
        for cross in self.crosses:
            x = cross(x0, x)
        logit: Tensor = self.head(self.norm(x)).squeeze(-1)
        return logit


def deep_cross_counts(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = DeepAndCross()
    batches = []
    for _ in range(50):
        x = torch.rand(64, 16) * 100
        batches.append((x, (x[:, 0] + x[:, 1] > x[:, 2] + x[:, 3]).float()))
    return Workload(
        model, click_loss, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )
