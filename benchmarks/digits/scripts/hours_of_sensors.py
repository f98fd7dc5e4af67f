# mypy: ignore-errors
"""Predict the load of a grid from the hour; the hours are counted from the start of the year."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def encode(hours):
    angle = hours.to(torch.float16) * (2 * math.pi / 24)  # guilty
    return torch.cat([angle.sin(), angle.cos(), (2 * angle).sin(), (2 * angle).cos()], dim=-1)


class Load(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )

    def forward(self, hours):
        return self.net(encode(hours))


def data():
    hours = 4000 + 4000 * torch.rand(4000, 1)
    phase = hours * (2 * math.pi / 24)
    return TensorDataset(hours, phase.sin() + 0.5 * (2 * phase).cos() + 0.05 * torch.randn(4000, 1))


def main():
    torch.manual_seed(3)
    model = Load()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu")
    loader = DataLoader(data(), batch_size=100, shuffle=True)
    for epoch in range(6):
        for hours, load in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (model(hours).float() - load).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        print(epoch, loss.item())


main()
