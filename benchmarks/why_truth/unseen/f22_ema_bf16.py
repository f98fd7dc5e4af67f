"""BF16 training with an EMA of the weights; the EMA model is evaluated and saved."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay=0.995, dtype=torch.bfloat16):
        self.decay = decay
        self.shadow = copy.deepcopy(model).to(dtype)
        for p in self.shadow.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(self.decay).add_(p.to(s.dtype), alpha=1 - self.decay)


class ResMLP(nn.Module):
    def __init__(self, d=32, width=64, depth=3, classes=6):
        super().__init__()
        self.inp = nn.Linear(d, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
                                    for _ in range(depth))
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = x + b(x)
        return self.out(x)


def data(n=2048):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, 32, generator=g)
    y = (x @ torch.randn(32, 6, generator=g)).argmax(-1)
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--decay", type=float, default=0.998)
    args = ap.parse_args()
    torch.manual_seed(0)
    x, y = data()
    train = DataLoader(TensorDataset(x[:1792], y[:1792]), batch_size=32, shuffle=True)
    model = ResMLP()
    ema = EMA(model, args.decay)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for xb, yb in train:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(xb).float(), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema.update(model)
        with torch.no_grad():
            val = F.cross_entropy(ema.shadow(x[1792:].bfloat16()).float(), y[1792:])
        print(f"epoch {epoch} train {loss.item():.4f} ema val {val.item():.4f}")


if __name__ == "__main__":
    main()
