# mypy: ignore-errors
"""Positions as FP16 numbers: above 2048 only every second integer exists."""

import torch
from torch import nn
from torch.nn import functional


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 5)
        self.register_buffer("rates", torch.exp(-torch.arange(16) / 4.0))

    def forward(self, x, start):
        positions = torch.arange(start, start + x.shape[1], dtype=torch.float16)  # guilty
        angles = positions.float()[:, None] * self.rates
        h = self.embed(x) + torch.cat([angles.sin(), angles.cos()], -1)
        return self.head(functional.gelu(self.mix(h)))


def make():
    torch.manual_seed(1)
    batch = torch.randn(2, 48, 16), torch.randint(0, 5, (2, 48))

    def loss(model, batch):
        return functional.cross_entropy(
            model(batch[0], 6001).flatten(0, 1).float(), batch[1].flatten()
        )

    return Reader(), loss, batch
