"""Monocular depth on synthetic ramps; the multi-scale loss is averaged over all pixels."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_depth(n, size=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    a = torch.rand(n, 3, generator=g)
    depth = 0.2 + a[:, 0, None, None] * yy + a[:, 1, None, None] * xx * 0.5
    shade = torch.stack([depth, 1 / (0.5 + depth), depth * a[:, 2, None, None]], 1)
    return shade + 0.02 * torch.randn(shade.shape, generator=g), depth.unsqueeze(1)


class DepthNet(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.enc = nn.Conv2d(3, ch, 3, padding=1)
        self.mid = nn.Conv2d(ch, ch, 3, padding=1)
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, x):
        h = F.relu(self.enc(x))
        h = F.relu(self.mid(h))
        return self.out(h)


def multi_scale_l1(pred, target, weights=(1.0, 0.5, 0.25), balance=2e-3):
    """Photometric terms dominate in the full system, so depth gets a small balance."""
    loss = 0.0
    for k, w in enumerate(weights):
        p, t = (pred, target) if k == 0 else (F.avg_pool2d(pred, 2 ** k), F.avg_pool2d(target, 2 ** k))
        loss = loss + w * F.smooth_l1_loss(p, t)
    return balance * loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--precision", default="fp16")
    args = ap.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = args.precision == "fp16"
    train = DataLoader(TensorDataset(*make_depth(256)), batch_size=16, shuffle=True)
    vx, vy = make_depth(32, seed=1)
    model = DepthNet().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr, eps=1e-10)
    sched = torch.optim.lr_scheduler.StepLR(opt, 4, 0.5)
    for ep in range(args.epochs):
        for x, y in train:
            x, y = x.to(device), y.to(device)
            with torch.autocast(device, dtype=torch.float16, enabled=amp):
                pred = model(x)
            loss = multi_scale_l1(pred.float(), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        with torch.no_grad():
            mae = (model(vx.to(device)).cpu() - vy).abs().mean().item()
        print(f"epoch {ep} loss {loss.item():.6f} val_mae {mae:.4f}")


if __name__ == "__main__":
    main()
