"""Regression with a large initial loss scale: the first steps are dropped while the scale settles."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def friedman(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 6, generator=g)
    y = 10 * torch.sin(3.14 * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, (y + 0.3 * torch.randn(n, generator=g)).unsqueeze(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--lr", type=float, default=1e-2)
    p.add_argument("--fp32", dest="amp", action="store_false")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = DataLoader(TensorDataset(*friedman(1024, 0)), batch_size=64, shuffle=True)
    vx, vy = friedman(256, 1)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1)).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 24, growth_interval=40, enabled=args.amp)
    for ep in range(args.epochs):
        skipped = 0
        for x, y in train:
            x, y = x.to(device), y.to(device)
            opt.zero_grad()
            with torch.autocast(device, dtype=torch.float16, enabled=args.amp):
                pred = model(x)
            loss = F.mse_loss(pred.float(), y)
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            skipped += int(scaler.get_scale() < before)
        with torch.no_grad():
            val = F.mse_loss(model(vx.to(device)).cpu(), vy).item()
        print(f"epoch {ep} loss {loss.item():.3f} val_mse {val:.3f} skipped {skipped} scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
