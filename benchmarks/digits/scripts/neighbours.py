# mypy: ignore-errors
"""Count close points: squared distances as |a|^2 + |b|^2 - 2ab, for points that are far from the origin."""

import torch
from torch import nn
from torch.nn import functional


def squared_distances(points):
    squares = (points * points).sum(-1)
    products = points @ points.transpose(1, 2)
    return squares[:, :, None] + squares[:, None, :] - 2 * products  # guilty


class Crowding(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_width = nn.Parameter(torch.zeros(16))
        self.head = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, points):
        apart = squared_distances(points.half()).float()
        kernels = torch.exp(-apart.clamp(min=0, max=50).unsqueeze(-1) * self.log_width.exp())
        return self.head(kernels.mean((1, 2)))


def batch(count=32):
    spread = 0.3 + 2 * torch.rand(count, 1, 1)
    points = 80 + 10 * torch.rand(count, 1, 3) + spread * torch.randn(count, 12, 3)
    return points, (spread[:, :, 0] - 1.3) / 0.6


def main():
    torch.manual_seed(0)
    model = Crowding()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(200):
        points, target = batch()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(points)
        loss = functional.smooth_l1_loss(out.float(), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 40 == 39:
            print(step, round(loss.item(), 4))


main()
