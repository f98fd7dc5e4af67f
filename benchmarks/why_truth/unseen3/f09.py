"""Small DDPM on 2-D toy data (two spirals), loss on the reconstructed sample."""
import math

import numpy as np
import torch
from torch import nn


def spirals(n, seed=0):
    rng = np.random.default_rng(seed)
    th = np.sqrt(rng.random(n)) * 3 * np.pi
    sign = rng.choice([-1.0, 1.0], n)
    pts = np.stack([np.cos(th) * th, np.sin(th) * th], 1) * sign[:, None] / (3 * np.pi)
    return torch.tensor(pts + 0.02 * rng.standard_normal((n, 2)), dtype=torch.float32)


def cosine_alpha_bar(T, s=0.008):
    def f(u):
        return math.cos((u + s) / (1 + s) * math.pi / 2) ** 2
    betas = [min(1 - f((i + 1) / T) / f(i / T), 0.999) for i in range(T)]
    return torch.cumprod(1 - torch.tensor(betas, dtype=torch.float64), 0)


class Schedule(nn.Module):
    def __init__(self, T, dtype):
        super().__init__()
        self.T = T
        ab = cosine_alpha_bar(T).to(dtype)
        self.register_buffer("sqrt_ab", ab.sqrt())
        self.register_buffer("sqrt_1mab", (1 - ab).sqrt())
        self.register_buffer("snr", ab / (1 - ab).clamp(min=1e-4))

    def q_sample(self, x0, t, eps):
        return self.sqrt_ab[t, None] * x0 + self.sqrt_1mab[t, None] * eps

    def predict_x0(self, xt, t, eps_hat):
        return (xt - self.sqrt_1mab[t, None] * eps_hat) / self.sqrt_ab[t, None]


class EpsNet(nn.Module):
    def __init__(self, width=64, tdim=16):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, 6, tdim // 2)), persistent=False)
        self.net = nn.Sequential(
            nn.Linear(2 + tdim, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, u):
        ang = u[:, None] * self.freq
        return self.net(torch.cat([x, ang.sin(), ang.cos()], dim=1))


def train(steps=350, batch=32, T=1000, lr=2e-3):
    torch.manual_seed(2)
    data = spirals(4000)
    amp_dtype = torch.float16
    sched = Schedule(T, amp_dtype)
    net = EpsNet()
    opt = torch.optim.AdamW(net.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    avg = 0.0
    for step in range(1, steps + 1):
        x0 = data[torch.randint(0, len(data), (batch,))]
        t = torch.randint(0, T, (batch,))
        eps = torch.randn_like(x0)
        xt = sched.q_sample(x0, t, eps)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=amp_dtype):
            eps_hat = net(xt, t.float() / T)
            x0_hat = sched.predict_x0(xt, t, eps_hat)
            w = sched.snr[t].clamp(max=5.0)
            loss = (w * (x0_hat - x0).pow(2).mean(dim=1)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        avg += loss.item() / 25
        if step % 25 == 0:
            print(f"step {step:4d} | loss {avg:.4f} | scale {scaler.get_scale():g}")
            avg = 0.0
    return net


@torch.no_grad()
def eval_eps(net, T=1000):
    g = torch.Generator().manual_seed(9)
    x0 = spirals(2000, seed=1)
    ab = cosine_alpha_bar(T).float()
    t = torch.randint(0, T, (2000,), generator=g)
    eps = torch.randn(2000, 2, generator=g)
    xt = ab[t, None].sqrt() * x0 + (1 - ab[t, None]).sqrt() * eps
    return (net(xt, t.float() / T) - eps).pow(2).mean().item()


if __name__ == "__main__":
    model = train()
    print(f"final eps mse {eval_eps(model):.4f}")
