"""Air quality regression with missing sensors: NaN marks a missing reading and is filled with an indicator."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def stations(n, seed, missing=0.25):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    y = x[:, 0] - 0.5 * x[:, 1] + x[:, 2] * x[:, 3] + 0.1 * torch.randn(n, generator=g)
    x[torch.rand(n, 8, generator=g) < missing] = float("nan")
    y[torch.rand(n, generator=g) < 0.05] = float("nan")
    return x, y


class Imputing(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        miss = torch.isnan(x)
        return self.net(torch.cat([torch.nan_to_num(x, nan=0.0), miss.float()], 1)).squeeze(1)


def masked_mse(pred, y):
    ok = ~torch.isnan(y)
    if not ok.any():
        return None
    return (pred[ok].float() - y[ok]).pow(2).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--dtype", default="float16")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dt = getattr(torch, args.dtype)
    amp = dt != torch.float32
    train = DataLoader(TensorDataset(*stations(1536, 0)), batch_size=64, shuffle=True)
    vx, vy = stations(512, 1)
    model = Imputing().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2048.0, enabled=amp)
    for ep in range(args.epochs):
        for x, y in train:
            with torch.autocast(device, dtype=dt if amp else torch.float16, enabled=amp):
                pred = model(x.to(device))
            loss = masked_mse(pred, y.to(device))
            if loss is None:
                continue
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        with torch.no_grad():
            val = masked_mse(model(vx.to(device)).cpu(), vy).item()
        print(f"epoch {ep} loss {loss.item():.4f} val_mse {val:.4f}")


if __name__ == "__main__":
    main()
