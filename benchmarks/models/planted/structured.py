"""Graphs, mixtures of experts, and capsules."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


def classify(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x).float(), y)


class GraphAttention(nn.Module):
    """Attention over edges, normalized per target, as in GAT, on a ring with chords."""

    source: Tensor
    target: Tensor

    def __init__(self, nodes: int, inputs: int, width: int) -> None:
        super().__init__()
        steps = torch.tensor([1, 2, 5])
        source = torch.arange(nodes).repeat(3)
        self.register_buffer("source", source)
        self.register_buffer("target", (source + steps.repeat_interleave(nodes)) % nodes)
        self.linear, self.score = nn.Linear(inputs, width), nn.Linear(2 * width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        pair = torch.cat([h[:, self.source], h[:, self.target]], -1)
        raw = F.leaky_relu(self.score(pair), 0.2)
        weight = torch.exp(raw).type_as(raw)
        total = torch.zeros_like(h[..., :1]).index_add(1, self.target, weight)
        alpha = weight / (total[:, self.target] + 1e-16)
        return torch.zeros_like(h).index_add(1, self.target, alpha * h[:, self.source])


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = GraphAttention(12, 6, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.attention(x)).mean(1))


def gat_edge_softmax(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = GAT()
    centres = 25 * torch.randn(3, 6)
    batches = []
    for _ in range(50):
        y = torch.randint(3, (32,))
        batches.append((centres[y][:, None] + 20 * torch.randn(32, 12, 6), y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )


class CentroidRouter(nn.Module):
    """Weights experts by how near their centroids are."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.centroids = nn.Parameter(20 * torch.randn(experts, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.project(x)[:, None]
        difference = h - self.centroids.type_as(h)
        near = 1 / ((difference * difference).mean(-1) + 1e-8)
        return near / near.sum(-1, keepdim=True)


class Mixture(nn.Module):
    def __init__(self, features: int = 8, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.embed, self.router = nn.Linear(features, width), CentroidRouter(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        weight = self.router(h)
        outputs = torch.stack([torch.relu(expert(h)) for expert in self.experts], 1)
        return self.head(self.norm((weight[..., None] * outputs).sum(1)))


def mixture_centroids(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Mixture()
    centres = 800 * torch.randn(3, 8)
    batches = []
    for index in range(50):
        y = torch.randint(3, (32,))
        loud = 3.0 if index % 2 else 0.1
        batches.append((loud * (centres[y] + 400 * torch.randn(32, 8)), y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )


class Capsules(nn.Module):
    """Vectors whose length is the probability of a part."""

    def __init__(self, features: int, capsules: int, size: int) -> None:
        super().__init__()
        self.linear, self.shape = nn.Linear(features, capsules * size), (capsules, size)

    def forward(self, x: Tensor) -> Tensor:
        s = self.linear(x).unflatten(-1, self.shape)
        length = (s * s).mean(-1, keepdim=True)
        return length / (1 + length) * s / torch.sqrt(length + 1e-6)


class CapsuleNet(nn.Module):
    """Reads pixels from 0 to 255."""

    def __init__(self, pixels: int = 36) -> None:
        super().__init__()
        self.parts, self.wholes = Capsules(pixels, 8, 4), nn.Linear(32, 24)
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.wholes(self.parts(x).flatten(1))))


def capsules_raw_pixels(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = CapsuleNet()
    model.parts.linear.weight.data.mul_(3)
    pictures = 255 * (torch.rand(4, 36) < 0.5).float()
    batches = []
    for _ in range(50):
        y = torch.randint(4, (32,))
        batches.append(((pictures[y] + 80 * torch.randn(32, 36)).clamp(0, 255), y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )
