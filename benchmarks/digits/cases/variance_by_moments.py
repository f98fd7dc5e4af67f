# mypy: ignore-errors
"""A variance as the difference of two moments: both are near 36 and differ by less than 1."""

import torch
from torch import nn
from torch.nn import functional

PRECISION = "float16"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.head = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x):
        z = self.outer(torch.tanh(self.inner(x))) + 6.0
        var = (z * z).mean(-1, keepdim=True) - z.mean(-1, keepdim=True).square()  # guilty
        z = (z - z.mean(-1, keepdim=True)) * torch.rsqrt(var + 1e-3)
        return self.head(functional.gelu(z))


def make():
    torch.manual_seed(0)
    batch = torch.randn(64, 32), torch.randn(64, 4)
    return Net(), lambda model, batch: functional.mse_loss(model(batch[0]).float(), batch[1]), batch
