"""1-D diffusion (v-prediction) with zero terminal SNR; the schedule stays in float32."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def signals(n, seed, length=16):
    rng = np.random.default_rng(seed)
    t = np.arange(length)
    f = rng.choice([1, 2, 3], n)[:, None]
    return torch.tensor(np.sin(2 * np.pi * f * t / length + rng.uniform(0, 6.28, (n, 1))), dtype=torch.float32)


class VSchedule:
    def __init__(self, T=500):
        u = torch.linspace(0, 1, T, dtype=torch.float64)
        self.a = torch.cos(u * torch.pi / 2).clamp(min=0).float()
        self.s = torch.sin(u * torch.pi / 2).float()
        self.T = T

    def noisy(self, x, t, eps):
        return self.a[t, None] * x + self.s[t, None] * eps

    def v(self, x, t, eps):
        return self.a[t, None] * eps - self.s[t, None] * x

    def snr(self, t):
        return (self.a[t] / self.s[t].clamp(min=1e-5)).pow(2)


class VNet(nn.Module):
    def __init__(self, length=16, width=64):
        super().__init__()
        self.t = nn.Linear(6, width)
        self.i = nn.Linear(length, width)
        self.m = nn.Linear(width, width)
        self.o = nn.Linear(width, length)

    def forward(self, x, u):
        ang = u[:, None] * torch.tensor([1.0, 3.0, 9.0])
        h = F.silu(self.i(x) + self.t(torch.cat([ang.sin(), ang.cos()], 1)))
        h = h + F.silu(self.m(h))
        return self.o(h)


def main():
    torch.manual_seed(0)
    x = signals(2000, 0)
    sch, net = VSchedule(), VNet()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(300):
        xb = x[torch.randint(0, len(x), (32,))]
        t = torch.randint(0, sch.T, (32,))
        eps = torch.randn_like(xb)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = net(sch.noisy(xb, t, eps), t / sch.T)
        w = 0.2 + sch.snr(t).clamp(max=5.0) / 5.0
        loss = (w * (pred.float() - sch.v(xb, t, eps)).pow(2).mean(1)).mean()
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f} max snr {sch.snr(t).max().item():.3g} min {sch.snr(t).min().item():.3g}")
    torch.manual_seed(1)
    with torch.no_grad():
        xt = signals(1000, 1)
        t = torch.randint(0, sch.T, (1000,))
        eps = torch.randn_like(xt)
        mse = F.mse_loss(net(sch.noisy(xt, t, eps), t / sch.T).float(), sch.v(xt, t, eps)).item()
    print(f"final v mse {mse:.4f}")


if __name__ == "__main__":
    main()
