"""Probabilistic forecast of solar production: predicts mean and log-variance per hour."""
import numpy as np
import torch
from torch import nn


def solar(days=160, seed=4):
    rng = np.random.default_rng(seed)
    hours = np.arange(days * 24)
    hod = hours % 24
    season = 0.7 + 0.3 * np.sin(2 * np.pi * hours / (24 * 365))
    sun = np.clip(np.sin((hod - 6) / 12 * np.pi), 0, None)
    cloud = np.repeat(rng.beta(2, 2, days), 24)
    prod = sun * season * (1 - 0.7 * cloud) + 0.04 * (sun > 0) * rng.standard_normal(hours.size)
    prod = np.where(sun > 0, np.clip(prod, 0, None), 0.0)
    return prod.astype(np.float32), hod, cloud.astype(np.float32)


def windows(prod, hod, cloud, ctx=24):
    xs, ys = [], []
    for i in range(ctx, len(prod) - 1):
        ang = hod[i] / 24 * 2 * np.pi
        xs.append(np.concatenate([prod[i - ctx:i], [np.sin(ang), np.cos(ang), np.sin(2 * ang), np.cos(2 * ang), cloud[i]]]))
        ys.append(prod[i])
    return torch.tensor(np.array(xs), dtype=torch.float32), torch.tensor(np.array(ys), dtype=torch.float32)


class Forecaster(nn.Module):
    def __init__(self, n_in, width=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_in, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.mu = nn.Linear(width, 1)
        self.logvar = nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return torch.relu(self.mu(h)).squeeze(-1), self.logvar(h).squeeze(-1)


def gaussian_nll(mu, logvar, y):
    return 0.5 * (logvar + (y - mu) ** 2 * torch.exp(-logvar)).mean()


def rmse(model, x, y):
    with torch.no_grad():
        mu, _ = model(x)
    return (mu.float() - y).pow(2).mean().sqrt().item()


def main():
    torch.manual_seed(8)
    x, y = windows(*solar())
    n = int(0.8 * len(x))
    xtr, ytr, xte, yte = x[:n], y[:n], x[n:], y[n:]
    model = Forecaster(x.size(1))
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=500)
    gen = torch.Generator().manual_seed(0)
    hist = []
    for step in range(400):
        idx = torch.randint(0, n, (48,), generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            mu, logvar = model(xtr[idx])
            loss = gaussian_nll(mu, logvar, ytr[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        hist.append(loss.item())
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} nll {np.mean(hist[-20:]):.4f} min logvar {logvar.min().item():.2f} test rmse {rmse(model, xte, yte):.4f}")
    print(f"final test rmse {rmse(model, xte, yte):.4f}")


if __name__ == "__main__":
    main()
