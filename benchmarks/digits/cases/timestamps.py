# mypy: ignore-errors
"""Minutes since midnight times days as one number in half, then a phase of it."""

import torch
from torch import nn
from torch.nn import functional


class Seasonal(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 32), nn.Linear(32, 1)

    def forward(self, x, minutes):
        clock = minutes.half()  # guilty
        phase = clock.float()[:, None] * torch.tensor([2, 4, 8]) * (torch.pi / 1440)
        h = self.body(torch.cat([phase.sin(), phase.cos()], -1))
        return self.head(torch.tanh(h) * (1 + x.mean(1, keepdim=True)))


def make():
    torch.manual_seed(8)
    minutes = torch.randint(20000, 60000, (96,))
    target = torch.sin(minutes * (2 * torch.pi / 1440))[:, None]
    batch = torch.randn(96, 4) * 0.1, minutes, target
    return Seasonal(), lambda model, b: functional.mse_loss(model(b[0], b[1]).float(), b[2]), batch
