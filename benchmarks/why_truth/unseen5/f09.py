"""Toy DDPM on 2-D spirals, x0-parameterised, with SNR weighting."""
import math

import torch
import torch.nn as nn

torch.manual_seed(17)
T = 200


def spiral(n):
    u = torch.rand(n).sqrt() * 3 * math.pi
    xy = torch.stack([u.cos() * u, u.sin() * u], 1) / 6.0
    return xy + 0.03 * torch.randn(n, 2)


class Schedule:
    def __init__(self, steps, beta_min=1e-4, beta_max=0.04, dtype=torch.float16):
        betas = torch.linspace(beta_min, beta_max, steps, dtype=dtype)
        self.abar = torch.cumprod(1 - betas, 0)
        self.snr = self.abar / (1 - self.abar)

    def noise(self, x0, eps, t):
        a = self.abar[t].float()[:, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * eps

    def weight(self, t, floor=0.5):
        return self.snr[t].float().sqrt().clamp(min=floor)


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, 4, 8)))
        self.net = nn.Sequential(
            nn.Linear(2 + 16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2),
        )

    def forward(self, x, t):
        ang = (t.float() / T)[:, None] * self.freq
        return self.net(torch.cat([x, ang.sin(), ang.cos()], 1))


data = spiral(8000)
held = spiral(2000)
schedule = Schedule(T)
model = Denoiser()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

STEPS, BATCH = 900, 64
for step in range(STEPS):
    x0 = data[torch.randint(0, len(data), (BATCH,))]
    t = torch.randint(0, T, (BATCH,))
    eps = torch.randn_like(x0)
    xt = schedule.noise(x0, eps, t)
    with torch.autocast("cpu", dtype=torch.float16):
        pred = model(xt, t)
    err = (pred.float() - x0).pow(2).sum(1)
    loss = (schedule.weight(t) * err).mean()
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 150 == 149:
        print(f"step {step + 1} loss {loss.item():.4f} scale {scaler.get_scale():.4g}")

gen = torch.Generator().manual_seed(0)
with torch.no_grad():
    t = torch.randint(5, T, (len(held),), generator=gen)
    eps = torch.randn(held.shape, generator=gen)
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.04, T), 0)[t][:, None]
    x_t = abar.sqrt() * held + (1 - abar).sqrt() * eps
    mse = (model(x_t, t) - held).pow(2).mean().item()
print(f"val_mse {mse:.4f}")
