"""Anchor-free detector head on synthetic heatmaps with a CenterNet-like focal loss."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    """Images with 1-3 bright blobs; the target is a Gaussian heatmap at stride 1."""
    def __init__(self, n, size=16, seed=0):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        self.x = 4.0 * torch.randn(n, 1, size, size, generator=g)
        self.t = torch.zeros(n, 1, size, size)
        for i in range(n):
            for _ in range(int(torch.randint(1, 4, (1,), generator=g))):
                r, c = torch.randint(1, size - 1, (2,), generator=g).tolist()
                d = ((yy - r) ** 2 + (xx - c) ** 2).float()
                self.t[i, 0] = torch.maximum(self.t[i, 0], torch.exp(-d / 2))
                self.x[i, 0] += 255.0 * torch.exp(-d / 2)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.t[i]


class FocalHeatmapLoss(nn.Module):
    def __init__(self, alpha=2, beta=4):
        super().__init__()
        self.alpha, self.beta = alpha, beta

    def forward(self, logits, target):
        p = torch.sigmoid(logits.float())
        pos = target.eq(1).float()
        neg = 1 - pos
        pos_loss = torch.log(p) * (1 - p) ** self.alpha * pos
        neg_loss = torch.log(1 - p) * p ** self.alpha * (1 - target) ** self.beta * neg
        return -(pos_loss.sum() + neg_loss.sum()) / pos.sum().clamp(min=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--amp", type=int, default=1)
    args = ap.parse_args()
    torch.manual_seed(0)
    amp = bool(args.amp)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = DataLoader(Blobs(256), batch_size=16, shuffle=True)
    valid = DataLoader(Blobs(64, seed=1), batch_size=32)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(16, 1, 1)).to(device)
    crit = FocalHeatmapLoss()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    for ep in range(args.epochs):
        tot = 0.0
        for x, t in train:
            x, t = x.to(device), t.to(device)
            opt.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
                out = model(x)
            loss = crit(out, t)
            loss.backward()
            opt.step()
            tot += loss.item()
        hit = n = 0
        with torch.no_grad():
            for x, t in valid:
                p = torch.sigmoid(model(x.to(device)).float()).cpu()
                best = p.flatten(1).argmax(1)
                hit += (t.flatten(1).gather(1, best[:, None]) == 1).sum().item()
                n += len(x)
        print(f"epoch {ep} loss {tot / len(train):.4f} val_peak_hit {hit / n:.3f}")


if __name__ == "__main__":
    main()
