# mypy: ignore-errors
"""A running sum in BF16: once it is large, further terms are lost."""

import torch
from torch import nn

PRECISION = "bfloat16"


class Rates(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(12, 32), nn.Linear(32, 1)

    def forward(self, x):
        return torch.nn.functional.softplus(self.head(torch.tanh(self.body(x))))


def loss(model, batch):
    x, events = batch
    rates = model(x)[..., 0].bfloat16()
    total = torch.zeros(rates.shape[0], dtype=torch.bfloat16)
    for step in range(rates.shape[1]):
        total = total + 0.005 * rates[:, step]  # guilty
    return (total.float() - events * total.float().clamp_min(1e-3).log()).mean()


def make():
    torch.manual_seed(5)
    return Rates(), loss, (torch.randn(8, 800, 12), torch.rand(8) * 2)
