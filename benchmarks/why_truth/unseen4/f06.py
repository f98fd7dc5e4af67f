"""DDPM on 2-D two-moons; the network predicts x0 and the loss is taken on the implied noise."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def two_moons(n):
    t = torch.rand(n) * math.pi
    side = torch.randint(0, 2, (n,)).float()
    x = torch.where(side > 0, t.cos(), 1 - t.cos())
    y = torch.where(side > 0, t.sin(), 0.5 - t.sin())
    return torch.stack([x - 0.5, y - 0.25], 1) + 0.03 * torch.randn(n, 2)


class Schedule:
    def __init__(self, steps, device, dtype):
        self.steps = steps
        betas = torch.linspace(1e-4, 0.02, steps, device=device, dtype=dtype)
        alphas = 1.0 - betas
        self.acp = torch.cumprod(alphas, dim=0)
        self.sqrt_acp = self.acp.sqrt()
        self.sqrt_one_minus = (1.0 - self.acp).sqrt()

    def add_noise(self, x0, noise, t):
        return self.sqrt_acp[t, None] * x0 + self.sqrt_one_minus[t, None] * noise

    def noise_from_x0(self, xt, x0_hat, t):
        return (xt - self.sqrt_acp[t, None] * x0_hat) / self.sqrt_one_minus[t, None]


class Denoiser(nn.Module):
    """Predicts x0 from (x_t, t)."""
    def __init__(self, steps, dim=96):
        super().__init__()
        self.time = nn.Embedding(steps, dim)
        self.inp = nn.Linear(2, dim)
        self.net = nn.Sequential(nn.SiLU(), nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 2))

    def forward(self, x, t):
        return self.net(self.inp(x) + self.time(t))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=400)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--amp", type=int, default=1)
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weight_dtype = torch.float16 if args.amp else torch.float32
    sched = Schedule(args.steps, device, weight_dtype)
    model = Denoiser(args.steps).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=bool(args.amp))
    hist = []
    for it in range(args.iters):
        x0 = two_moons(args.batch).to(device)
        noise = torch.randn_like(x0)
        t = torch.randint(0, args.steps, (args.batch,), device=device)
        xt = sched.add_noise(x0, noise, t)
        with torch.autocast(device, dtype=torch.float16, enabled=bool(args.amp)):
            x0_hat = model(xt, t)
        eps_hat = sched.noise_from_x0(xt, x0_hat.float(), t)
        loss = F.smooth_l1_loss(eps_hat, noise)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        hist.append(loss.item())
        if (it + 1) % 100 == 0:
            print(f"it {it + 1} eps_loss {sum(hist[-100:]) / 100:.4f}")


if __name__ == "__main__":
    main()
