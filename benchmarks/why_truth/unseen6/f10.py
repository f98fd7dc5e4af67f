"""Hourly load forecasting from calendar features, bf16."""
from dataclasses import dataclass
import math
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    n_hours: int = 24 * 7 * 26
    periods: tuple = (24.0, 168.0)
    harmonics: int = 3
    hidden: int = 64
    lr: float = 3e-3
    batch: int = 128
    epochs: int = 12
    dtype: torch.dtype = torch.bfloat16
    seed: int = 5


class FourierFeatures(nn.Module):
    def __init__(self, periods, harmonics):
        super().__init__()
        w = [2 * math.pi * k / p for p in periods for k in range(1, harmonics + 1)]
        self.register_buffer("omega", torch.tensor(w))

    def forward(self, t):
        phase = t.unsqueeze(-1) * self.omega
        return torch.cat([phase.sin(), phase.cos()], dim=-1)


class LoadModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.feats = FourierFeatures(cfg.periods, cfg.harmonics)
        d = 2 * len(cfg.periods) * cfg.harmonics
        self.mlp = nn.Sequential(nn.Linear(d + 1, cfg.hidden), nn.GELU(),
                                 nn.Linear(cfg.hidden, cfg.hidden), nn.GELU(),
                                 nn.Linear(cfg.hidden, 1))

    def forward(self, t, temp):
        z = torch.cat([self.feats(t), temp.unsqueeze(-1)], dim=-1)
        return self.mlp(z).squeeze(-1)


def make_series(cfg):
    rng = np.random.default_rng(cfg.seed)
    h = np.arange(cfg.n_hours)
    daily = np.sin(2 * np.pi * h / 24 - 1.0) + 0.4 * np.sin(4 * np.pi * h / 24)
    weekly = 0.5 * (((h // 24) % 7) < 5)
    temp = np.cumsum(rng.normal(0, 0.1, cfg.n_hours))
    temp = (temp - temp.mean()) / temp.std()
    y = daily + weekly + 0.3 * temp ** 2 + rng.normal(0, 0.1, cfg.n_hours)
    y = (y - y.mean()) / y.std()
    return (torch.tensor(h), torch.tensor(temp, dtype=torch.float32),
            torch.tensor(y, dtype=torch.float32))


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    h, temp, y = make_series(cfg)
    order = torch.randperm(len(h))
    va, tr = order[:800], order[800:]
    hours = h.to(cfg.dtype)
    temp = temp.to(cfg.dtype)
    loader = DataLoader(TensorDataset(hours[tr], temp[tr], y[tr]), cfg.batch, shuffle=True)
    model = LoadModel(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        total = 0.0
        for t, c, target in loader:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=cfg.dtype, enabled=cfg.dtype != torch.float32):
                pred = model(t, c)
            loss = nn.functional.mse_loss(pred.float(), target)
            loss.backward()
            opt.step()
            total += loss.item() * len(t)
        print(f"epoch {epoch:2d}  train_mse {total / len(tr):.4f}")
    with torch.no_grad(), torch.autocast("cpu", dtype=cfg.dtype, enabled=cfg.dtype != torch.float32):
        pred = model(hours[va], temp[va])
    print(f"val_mse {nn.functional.mse_loss(pred.float(), y[va]).item():.4f}")


if __name__ == "__main__":
    main()
