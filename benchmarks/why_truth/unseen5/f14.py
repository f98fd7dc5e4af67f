"""Fraud detection on tabular data; focal loss on probabilities; fp16 autocast."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Config:
    n: int = 8000
    features: int = 16
    hidden: int = 64
    lr: float = 4e-3
    epochs: int = 6
    batch: int = 160
    gamma: float = 1.5
    eps: float = 1e-6
    seed: int = 29


def transactions(cfg, n):
    x = torch.randn(n, cfg.features)
    risk = 3.0 * x[:, 0] + 2.0 * x[:, 1] * x[:, 2] + 1.5 * x[:, 3].abs() - 6.0
    y = (risk + 0.3 * torch.randn(n) > 0).float()
    x[:, 4] += 3.0 * y * (torch.rand(n) < 0.7)
    return x, y


class FocalLoss(nn.Module):
    def __init__(self, gamma, eps):
        super().__init__()
        self.gamma, self.eps = gamma, eps

    def forward(self, prob, target):
        p = prob.clamp(self.eps, 1 - self.eps)
        pos = target * (1 - p) ** self.gamma * torch.log(p)
        neg = (1 - target) * p ** self.gamma * torch.log(1 - p)
        return -(4.0 * pos + neg).mean()


class FraudTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.x, self.y = transactions(cfg, cfg.n)
        self.xv, self.yv = transactions(cfg, 2000)
        self.net = nn.Sequential(
            nn.Linear(cfg.features, cfg.hidden), nn.ReLU(),
            nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, 1))
        self.criterion = FocalLoss(cfg.gamma, cfg.eps)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg.lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def loss(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            prob = torch.sigmoid(self.net(x).squeeze(-1))
            return self.criterion(prob, y.to(prob.dtype))

    def fit(self):
        for epoch in range(self.cfg.epochs):
            acc = 0.0
            for idx in torch.randperm(self.cfg.n).split(self.cfg.batch):
                loss = self.loss(self.x[idx], self.y[idx])
                self.opt.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.opt)
                self.scaler.update()
                acc += loss.item()
            print(f"epoch {epoch} loss {acc * self.cfg.batch / self.cfg.n:.5f}")

    @torch.no_grad()
    def validate(self):
        return self.loss(self.xv, self.yv).item()


if __name__ == "__main__":
    trainer = FraudTrainer(Config())
    trainer.fit()
    print(f"val_focal {trainer.validate():.5f}")
