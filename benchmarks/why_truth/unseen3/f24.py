"""Hourly load forecasting with calendar features, everything in bfloat16 except the optimiser state."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def load_series(hours=4000, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    temp = 10 * np.sin(2 * np.pi * t / 8760) + rng.standard_normal(hours).cumsum() * 0.02
    y = np.sin(2 * np.pi * t / 24) + 0.5 * np.cos(4 * np.pi * t / 24) + 0.4 * np.sin(2 * np.pi * t / 168) + 0.05 * temp
    return (y + 0.1 * rng.standard_normal(hours)).astype(np.float32), temp.astype(np.float32)


class CalendarFeatures(nn.Module):
    """sin/cos pairs of the hour counter for the given periods (hours)"""

    def __init__(self, periods=(12.0, 24.0, 84.0, 168.0)):
        super().__init__()
        self.register_buffer("omega", 2 * torch.pi / torch.tensor(periods))

    def forward(self, t):
        ang = t.to(self.omega.dtype).unsqueeze(-1) * self.omega
        return torch.cat([ang.sin(), ang.cos()], dim=-1)


class LoadNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.cal = CalendarFeatures()
        self.net = nn.Sequential(nn.Linear(9, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, t, temp):
        c = self.cal(t)
        return self.net(torch.cat([c, temp.to(c.dtype).unsqueeze(-1)], dim=-1)).squeeze(-1)


class MixedAdam:
    def __init__(self, params, lr):
        self.lo = list(params)
        self.hi = [p.detach().float().clone() for p in self.lo]
        self.opt = torch.optim.Adam(self.hi, lr=lr)

    def step(self):
        for h, l in zip(self.hi, self.lo):
            h.grad = l.grad.float()
            l.grad = None
        self.opt.step()
        with torch.no_grad():
            for h, l in zip(self.hi, self.lo):
                l.copy_(h)


def mae(model, t, temp, y):
    with torch.no_grad():
        return (model(t, temp).float() - y).abs().mean().item()


def main():
    torch.manual_seed(14)
    y, temp = load_series()
    y, temp = torch.from_numpy(y), torch.from_numpy(temp) / 10
    t = torch.arange(len(y))
    perm = torch.randperm(len(y))
    tr, te = perm[:3200], perm[3200:]
    model = LoadNet().bfloat16()
    opt = MixedAdam(model.parameters(), lr=3e-3)
    for step in range(500):
        i = tr[torch.randint(0, len(tr), (64,))]
        loss = F.smooth_l1_loss(model(t[i], temp[i]).float(), y[i])
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} test mae {mae(model, t[te], temp[te], y[te]):.4f}")
    print(f"final test mae {mae(model, t[te], temp[te], y[te]):.4f}")


if __name__ == "__main__":
    main()
