"""Sequence-to-one GRU regression with gradient accumulation, clipping and FP16."""
import argparse

import torch
from torch import nn


class GRURegressor(nn.Module):
    def __init__(self, inputs=3, hidden=24):
        super().__init__()
        self.cell = nn.GRUCell(inputs, hidden)
        self.head = nn.Linear(hidden, 1)
        self.hidden = hidden

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.hidden)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


def series(n, length=8):
    x = torch.randn(n, length, 3)
    weight = torch.linspace(0.2, 1.0, length)
    y = (x[..., 0] * weight).sum(1, keepdim=True) * 0.5 + 0.3 * x[:, -1, 1:2]
    return x, y


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=60)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--micro-batch", type=int, default=16)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--lr", type=float, default=1e-2)
    return p.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    model = GRURegressor()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    optimizer.zero_grad()
    for micro in range(args.updates * args.accumulate):
        x, y = series(args.micro_batch)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss / args.accumulate).backward()

        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        if (micro + 1) % args.accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        if micro % 10 == 0:
            print(f"micro-step {micro:3d} loss {loss.item():.4f} norm {norm.item():.3f}")


if __name__ == "__main__":
    main()
