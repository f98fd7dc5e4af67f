"""Hourly electricity load from the timestamp, trained with Accelerate in bfloat16."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def load_curve(n, seed):
    """Hour index over a year and the (normalised) load."""
    g = torch.Generator().manual_seed(seed)
    hour = torch.randint(0, 8760, (n,), generator=g).float()
    day = torch.sin(2 * math.pi * hour / 24) + 0.5 * torch.cos(4 * math.pi * hour / 24)
    week = 0.6 * torch.sin(2 * math.pi * hour / 168)
    year = 0.8 * torch.cos(2 * math.pi * hour / 8760)
    return hour.unsqueeze(1), (day + week + year + 0.1 * torch.randn(n, generator=g)).unsqueeze(1)


class TimeEncoding(nn.Module):
    """Sine/cosine features of calendar periods."""
    def __init__(self, periods=(12.0, 24.0, 168.0, 8760.0)):
        super().__init__()
        self.register_buffer("omega", torch.tensor([2 * math.pi / p for p in periods]), persistent=False)

    def forward(self, hour):
        ang = hour * self.omega
        return torch.cat([ang.sin(), ang.cos()], -1)


class LoadModel(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.time = TimeEncoding()
        self.net = nn.Sequential(nn.Linear(8, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, hour):
        return self.net(self.time(hour))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", choices=["bf16", "no"], default="bf16")
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--lr", type=float, default=1e-2)
    args = ap.parse_args()
    torch.manual_seed(0)
    acc = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=args.precision)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    train = DataLoader(TensorDataset(*load_curve(2048, 0)), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(*load_curve(512, 1)), batch_size=512)
    model = LoadModel()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(train))
    model, opt, train, valid, sched = acc.prepare(model, opt, train, valid, sched)
    for ep in range(args.epochs):
        for hour, load in train:
            hour = hour.to(dtype)
            loss = F.mse_loss(model(hour).float(), load)
            acc.backward(loss)
            opt.step()
            sched.step()
            opt.zero_grad()
        with torch.no_grad():
            val = sum(F.mse_loss(model(h.to(dtype)).float(), y).item() for h, y in valid)
        acc.print(f"epoch {ep} loss {loss.item():.4f} val_mse {val:.4f}")


if __name__ == "__main__":
    main()
