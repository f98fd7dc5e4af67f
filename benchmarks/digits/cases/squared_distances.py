# mypy: ignore-errors
"""Distances of near points by |a|^2 + |b|^2 - 2ab: three numbers near 400, and differences below 1."""

import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 24)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x))) + 4.0


def distances(z):
    z = z.half()
    return (z * z).sum(-1)[:, None] + (z * z).sum(-1)[None] - 2 * (z @ z.T)  # guilty


def loss(model, batch):
    x, labels = batch
    same = labels[:, None] == labels[None]
    near = torch.exp(-distances(model(x)).float())
    return torch.where(same, 1 - near, near).mean()


def make():
    torch.manual_seed(9)
    return Embedder(), loss, (torch.randn(32, 16), torch.randint(0, 4, (32,)))
