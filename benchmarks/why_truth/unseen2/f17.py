"""Learn a daily load curve from (minute of the year, temperature) pairs."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

MINUTES_PER_DAY = 1440


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch", type=int, default=48)
    p.add_argument("--lr", type=float, default=5e-3)
    p.add_argument("--days", type=int, default=40)
    return p.parse_args()


def records(n, days):
    minute = torch.randint(0, days * MINUTES_PER_DAY, (n,))
    phase = 2 * math.pi * (minute % 60) / 60.0
    temperature = torch.randn(n)
    load = torch.sin(phase) + 0.5 * torch.cos(2 * phase) + 0.1 * temperature
    return minute, temperature, load


class CycleEncoding(nn.Module):
    """Sines and cosines of the time at a few known periods (minutes)."""

    periods = (1440.0, 360.0, 60.0, 30.0)

    def forward(self, t):
        t = t.to(torch.float16)
        waves = []
        for period in self.periods:
            angle = 2 * math.pi * ((t / period) % 1.0)
            waves += [torch.sin(angle), torch.cos(angle)]
        return torch.stack(waves, dim=-1)


class LoadModel(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.time = CycleEncoding()
        self.net = nn.Sequential(nn.Linear(9, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, minute, temperature):
        encoded = self.time(minute)
        x = torch.cat([encoded, temperature.to(encoded.dtype).unsqueeze(-1)], dim=-1)
        return self.net(x).squeeze(-1)


def main():
    args = parse()
    torch.manual_seed(0)
    model = LoadModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(args.steps):
        minute, temperature, load = records(args.batch, args.days)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(minute, temperature).float(), load)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 15 == 0 or step == args.steps - 1:
            print(f"step {step:4d} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
