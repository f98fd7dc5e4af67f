"""Metric learning: triplets, prototypes and pairs."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Triplet = tuple[Tensor, Tensor, Tensor]


class Embedder(nn.Module):
    def __init__(self, features: int = 16, width: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    d = a - b
    return (d * d).mean(-1)


def triplet_loss(model: nn.Module, batch: Triplet) -> Tensor:
    anchor, positive, negative = (model(x) for x in batch)
    near, far = squared_distance(anchor, positive), squared_distance(anchor, negative)
    return F.softplus((near - far).float() / 1e5).mean()


def triplets(count: int, centres: Tensor, noise: float) -> Triplet:
    kinds, features = centres.shape
    same = torch.randint(kinds, (count,))
    other = (same + torch.randint(1, kinds, (count,))) % kinds
    anchor, positive, negative = (
        centres[y] + noise * torch.randn(count, features) for y in (same, same, other)
    )
    return anchor, positive, negative


def triplet_raw_features(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Embedder()
    centres = 2000 * torch.randn(6, 16)
    batches = [triplets(32, centres, 2000.0) for _ in range(50)]
    return Workload(
        model, triplet_loss, batches, torch.optim.Adam(model.parameters(), lr=1e-3), seed=seed
    )


def cosine_margin(model: nn.Module, batch: Triplet) -> Tensor:
    anchor, positive, negative = (model(x) for x in batch)

    def cosine(a: Tensor, b: Tensor) -> Tensor:
        lengths = torch.sqrt((a * a).mean(-1) * (b * b).mean(-1))
        return (a * b).mean(-1) / (lengths + 1e-8)

    return torch.relu(0.5 + cosine(anchor, negative) - cosine(anchor, positive)).mean()


def siamese_cosine(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Embedder()
    centres = 200 * torch.randn(6, 16) + 200
    batches = [triplets(32, centres, 200.0) for _ in range(50)]
    return Workload(
        model, cosine_margin, batches, torch.optim.Adam(model.parameters(), lr=1e-3), seed=seed
    )


class UnitLength(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).sum(-1, keepdim=True))


class ProtoNet(nn.Module):
    """Compares pictures with learned prototypes; its first weights are small, as in a MAML setup."""

    def __init__(self, features: int = 16, width: int = 16, kinds: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 48), nn.Tanh(), nn.Linear(48, width))
        self.unit = UnitLength()
        self.prototypes = nn.Linear(width, kinds)
        nn.init.normal_(self.body[2].weight, std=2e-5)  # type: ignore[arg-type]
        nn.init.zeros_(self.body[2].bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.prototypes(self.unit(self.body(x)))
        return logits


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x).float(), y)


def prototypes_small_init(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = ProtoNet()
    centres = torch.randn(6, 16)
    batches = []
    for _ in range(50):
        y = torch.randint(6, (48,))
        batches.append((centres[y] + 0.5 * torch.randn(48, 16), y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=1e-3), seed=seed
    )
