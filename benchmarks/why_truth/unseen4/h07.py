"""Multi-label tagging with an asymmetric loss written with clamped logs."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def tags(n, seed, labels=10, dim=24):
    w = torch.Generator().manual_seed(11)
    proj = torch.randn(dim, labels, generator=w)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=g)
    return x, ((x @ proj) > 5.0).float()


class AsymmetricLoss(nn.Module):
    def __init__(self, gamma_neg=2, clip=0.05, eps=1e-7):
        super().__init__()
        self.gamma_neg, self.clip, self.eps = gamma_neg, clip, eps

    def forward(self, logits, y):
        with torch.autocast(logits.device.type, enabled=False):
            p = torch.sigmoid(logits.float())
            q = (1 - p + self.clip).clamp(max=1)
            loss = y * torch.log(p.clamp(min=self.eps)) + (1 - y) * torch.log(q.clamp(min=self.eps)) * (1 - q) ** self.gamma_neg
            return -loss.sum(1).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--fp32", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = not args.fp32
    train = DataLoader(TensorDataset(*tags(1536, 0)), batch_size=64, shuffle=True)
    vx, vy = tags(512, 1)
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    crit = AsymmetricLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=amp)
    for ep in range(args.epochs):
        for x, y in train:
            with torch.autocast(device, dtype=torch.float16, enabled=amp):
                loss = crit(model(x.to(device)), y.to(device))
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
        with torch.no_grad():
            pred = (model(vx.to(device)) > 0).float().cpu()
        tp = (pred * vy).sum()
        f1 = (2 * tp / (pred.sum() + vy.sum())).item()
        print(f"epoch {ep} loss {loss.item():.4f} val_f1 {f1:.3f}")


if __name__ == "__main__":
    main()
