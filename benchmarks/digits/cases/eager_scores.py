# mypy: ignore-errors
"""Eager attention whose scores are rounded to BF16 before the softmax (transformers#33317)."""

import math

import torch
from torch import nn
from torch.nn import functional

PRECISION = "bfloat16"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.v, self.out = nn.Linear(64, 64), nn.Linear(64, 64)
        with torch.no_grad():
            self.q.bias.fill_(6.0)
            self.k.bias.fill_(6.0)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = self.q(h), self.k(h), self.v(h)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # guilty
        return x + self.out(scores.softmax(-1).to(v.dtype) @ v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(64, 64), nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(64, 64)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make():
    torch.manual_seed(3)
    ids = torch.randint(0, 64, (2, 32))

    def loss(model, ids):
        return functional.cross_entropy(
            model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()
        )

    return Model(), loss, ids
