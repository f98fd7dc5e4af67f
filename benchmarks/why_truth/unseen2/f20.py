"""Density estimation of a small sensor table with affine coupling layers."""
import argparse
import math

import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=160)
ap.add_argument("--batch", type=int, default=32)
ap.add_argument("--lr", type=float, default=5e-3)
ap.add_argument("--layers", type=int, default=2)
args = ap.parse_args()

torch.manual_seed(2)
COLUMNS = 8
basis = torch.randn(3, COLUMNS) * 0.6


def table(n):
    z = torch.randn(n, 3)
    x = torch.tanh(z @ basis) + 0.3 * torch.randn(n, COLUMNS)
    # two channels are not connected on this board
    x[:, 3] = 0.0
    x[:, 6] = 0.0
    return x


class Coupling(nn.Module):
    def __init__(self, columns, flip, hidden=32):
        super().__init__()
        self.flip = flip
        half = columns // 2
        self.net = nn.Sequential(nn.Linear(half, hidden), nn.ReLU(), nn.Linear(hidden, 2 * half))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        if self.flip:
            a, b = b, a
        log_scale, shift = self.net(a).chunk(2, dim=-1)
        b = (b - shift) * torch.exp(log_scale)
        x = torch.cat([b, a] if self.flip else [a, b], dim=-1)
        return x, log_scale.float().sum(-1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(COLUMNS, flip=i % 2 == 1) for i in range(args.layers))

    def forward(self, x):
        logdet = 0.0
        for layer in self.layers:
            x, ld = layer(x)
            logdet = logdet + ld
        return x, logdet


def nll(z, logdet):
    z = z.float()
    return (0.5 * z.pow(2).sum(-1) + 0.5 * COLUMNS * math.log(2 * math.pi) - logdet).mean()


flow = Flow()
optimizer = torch.optim.Adam(flow.parameters(), lr=args.lr)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

for step in range(args.steps):
    x = table(args.batch)
    with torch.autocast("cpu", dtype=torch.float16):
        z, logdet = flow(x)
    loss = nll(z, logdet)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == args.steps - 1:
        print(f"step {step:3d} nll {loss.item():.4f} scale {scaler.get_scale():g}")
