"""Demand forecast with heavy tails: a batch now and then has a loss 100 times the usual one."""
import argparse

import torch
import torch.nn as nn


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


class Shop:
    def __init__(self, seed=3):
        self.g = torch.Generator().manual_seed(seed)
        self.w = torch.randn(16, generator=self.g)

    def batch(self, n, step):
        x = torch.randn(n, 16, generator=self.g)
        y = torch.sin(x @ self.w / 3) * 2 + 0.1 * torch.randn(n, generator=self.g)
        if step % 45 == 44:
            y[:3] += 60.0  # a sale
        return x, y


def train(args):
    torch.manual_seed(0)
    shop, model = Shop(), Demand()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=60)
    average = None
    for step in range(args.steps):
        x, y = shop.batch(64, step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(x)
        loss = (pred.float() - y).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        if loss.item() > 20 * average / 2:
            print(f"  step {step}: spike, loss {loss.item():.1f} norm {norm.item():.1f}")
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=2e-3)
    train(parser.parse_args())
