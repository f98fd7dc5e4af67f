"""Forecast the next value of a multi-sensor series with a small attention encoder."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class SeriesAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.dk = dim // heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q = q.view(b, t, self.heads, self.dk).transpose(1, 2)
        k = k.view(b, t, self.heads, self.dk).transpose(1, 2)
        v = v.view(b, t, self.heads, self.dk).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores = scores / math.sqrt(self.dk)
        att = F.softmax(scores, dim=-1)
        out = torch.matmul(att, v).transpose(1, 2).reshape(b, t, d)
        return self.proj(out)


class Forecaster(nn.Module):
    def __init__(self, n_sensors, dim=64, heads=2):
        super().__init__()
        self.inp = nn.Linear(n_sensors, dim)
        self.att = SeriesAttention(dim, heads)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1))

    def forward(self, x):
        h = self.inp(x)
        h = self.norm(h + self.att(h))
        return self.head(h[:, -1]).squeeze(-1)


def make_data(n, t=24, sensors=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    phase = torch.rand(n, sensors, generator=g) * 6.28
    freq = 0.2 + 0.3 * torch.rand(n, 1, generator=g)
    steps = torch.arange(t + 1).float()
    x = torch.sin(freq[:, :, None] * steps + phase[:, :, None])
    x = x + 0.05 * torch.randn(x.shape, generator=g)
    # readings come in ADC counts
    x = x.transpose(1, 2) * 900.0
    return x[:, :-1], x[:, -1, 0] / 900.0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--no-amp", action="store_true")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = not args.no_amp
    train = DataLoader(TensorDataset(*make_data(1024)), batch_size=64, shuffle=True)
    vx, vy = make_data(512, seed=1)
    model = Forecaster(6).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, enabled=amp)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train:
            x, y = x.to(device), y.to(device)
            opt.zero_grad()
            with torch.autocast(device, dtype=torch.float16, enabled=amp):
                pred = model(x)
                loss = F.mse_loss(pred.float(), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        model.eval()
        with torch.no_grad(), torch.autocast(device, dtype=torch.float16, enabled=amp):
            val = F.mse_loss(model(vx.to(device)).float(), vy.to(device))
        print(f"epoch {epoch} train {loss.item():.4f} val_mse {val.item():.4f}")


if __name__ == "__main__":
    main()
