"""Baseline predictor (user and item offsets) on a 0-100 rating scale. Tables kept in half to save memory."""
import argparse

import numpy as np
import torch
import torch.nn as nn


class Ratings:
    def __init__(self, n, users, items, seed):
        world = np.random.default_rng(42)
        bu = world.normal(size=users) * 3.0
        bi = world.normal(size=items) * 7.0
        r = np.random.default_rng(seed)
        u = r.integers(0, users, n)
        i = r.integers(0, items, n)
        y = 62.0 + bu[u] + bi[i] + r.normal(size=n) * 1.5
        self.u, self.i = torch.as_tensor(u), torch.as_tensor(i)
        self.y = torch.as_tensor(y, dtype=torch.float32)

    def batches(self, size, shuffle=False):
        order = torch.randperm(len(self.y)) if shuffle else torch.arange(len(self.y))
        for k in order.split(size):
            yield self.u[k], self.i[k], self.y[k]


class Offsets(nn.Module):
    def __init__(self, users, items, mean):
        super().__init__()
        self.user = nn.Embedding(users, 1)
        self.item = nn.Embedding(items, 1)
        nn.init.zeros_(self.user.weight)
        # every item starts at the global mean
        nn.init.constant_(self.item.weight, mean)

    def forward(self, u, i):
        return self.user(u).float().squeeze(-1) + self.item(i).float().squeeze(-1)


@torch.no_grad()
def rmse(model, data):
    se = sum((model(u, i) - y).pow(2).sum().item() for u, i, y in data.batches(1000))
    return (se / len(data.y)) ** 0.5


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--users", type=int, default=80)
    p.add_argument("--items", type=int, default=40)
    p.add_argument("--lr", type=float, default=0.015)
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--dtype", default="float16")
    args = p.parse_args()
    torch.manual_seed(0)
    train = Ratings(16000, args.users, args.items, 1)
    valid = Ratings(2000, args.users, args.items, 2)
    model = Offsets(args.users, args.items, train.y.mean().item())
    model = model.to(getattr(torch, args.dtype))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, eps=1e-4)
    print(f"start val_rmse {rmse(model, valid):.4f}")
    for ep in range(args.epochs):
        for u, i, y in train.batches(128, shuffle=True):
            loss = (model(u, i) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {ep} train {loss.item():.4f} val_rmse {rmse(model, valid):.4f}")


if __name__ == "__main__":
    main()
