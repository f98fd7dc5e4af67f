# mypy: ignore-errors
"""Prices near 30,000 that the first layer gets in half: steps of 16."""

import torch
from torch import nn
from torch.nn import functional


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 1)

    def forward(self, prices):
        h = self.first(prices)  # guilty
        return self.second(torch.tanh(self.norm(h)))


def make():
    torch.manual_seed(7)
    prices = 30000 + 40 * torch.randn(64, 8)
    batch = prices, (prices[:, :1] - prices.mean(1, keepdim=True)) / 40
    return Forecast(), lambda model, b: functional.mse_loss(model(b[0]).float(), b[1]), batch
