# mypy: ignore-errors
"""Feature averages kept in BF16: an update of 0.1% of the difference is rounded away."""

import torch
from torch import nn
from torch.nn import functional

PRECISION = "bfloat16"


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 3)
        self.register_buffer("mean", torch.full((32,), 3.0, dtype=torch.bfloat16))

    def forward(self, x):
        h = functional.softplus(self.body(x) + 3.0)
        mean = self.mean
        for part in h.split(4):
            mean = mean + 0.002 * (part.detach().mean(0).to(mean.dtype) - mean)  # guilty
        return self.head((h - mean.float()) * 4)


def make():
    torch.manual_seed(6)
    batch = torch.randn(256, 16), torch.randint(0, 3, (256,))
    return Centred(), lambda model, b: functional.cross_entropy(model(b[0]).float(), b[1]), batch
