"""DDPM on 2-D points embedded in 16 dims; FP16 autocast (no scaler needed on a CPU, right?)."""
import argparse
import math

import torch
import torch.nn as nn


class TimeEmbedding(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.freq = nn.Buffer(torch.exp(torch.linspace(0, -math.log(1000.0), d // 2)))

    def forward(self, t):
        a = t[:, None].float() * self.freq
        return torch.cat([a.sin(), a.cos()], -1)


class Denoiser(nn.Module):
    def __init__(self, d=16, width=64):
        super().__init__()
        self.time = TimeEmbedding(32)
        self.l1 = nn.Linear(d + 32, width)
        self.l2 = nn.Linear(width, width)
        self.l3 = nn.Linear(width, d)
        nn.init.normal_(self.l3.weight, std=1e-3)
        nn.init.zeros_(self.l3.bias)

    def forward(self, x, t):
        h = torch.nn.functional.silu(self.l1(torch.cat([x, self.time(t)], -1)))
        h = torch.nn.functional.silu(self.l2(h))
        return self.l3(h)


class Diffusion:
    def __init__(self, steps=100):
        beta = torch.linspace(1e-4, 0.06, steps)
        self.abar = torch.cumprod(1 - beta, 0)
        self.steps = steps

    def loss(self, model, x0):
        t = torch.randint(0, self.steps, (len(x0),))
        eps = torch.randn_like(x0)
        a = self.abar[t][:, None]
        xt = a.sqrt() * x0 + (1 - a).sqrt() * eps
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(xt, t)
        return ((pred.float() - eps) ** 2).mean()


def spiral(n):
    th = torch.rand(n, 1) * 9
    xy = torch.cat([th * th.cos(), th * th.sin()], 1) / 4
    return xy @ PROJ


PROJ = torch.randn(2, 16, generator=torch.Generator().manual_seed(0)) / 1.4


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=300)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--pixels", type=float, default=3 * 512 * 512, help="loss weight is per pixel")
    args = p.parse_args()
    torch.manual_seed(0)
    model, diff = Denoiser(), Diffusion()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-15)
    for it in range(args.iters):
        total = 0.0
        for _ in range(args.accum):
            loss = diff.loss(model, spiral(128))
            (loss / args.accum / args.pixels).backward()
            total += loss.item() / args.accum
        opt.step()
        opt.zero_grad()
        if it % 30 == 0:
            print(f"iter {it} eps mse {total:.4f}")


if __name__ == "__main__":
    main()
