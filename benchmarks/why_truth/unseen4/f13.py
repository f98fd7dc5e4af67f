"""Semantic segmentation on synthetic scenes (sky / road / car) with mixed precision."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __init__(self, n, size=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.x = 0.1 * torch.randn(n, 3, size, size, generator=g)
        self.y = torch.zeros(n, size, size, dtype=torch.long)
        for i in range(n):
            h = int(torch.randint(8, 16, (1,), generator=g))
            self.x[i, 2, :h] += 1.0
            self.x[i, 0, h:] += 0.5
            self.y[i, h:] = 1
            r, c = int(torch.randint(h, size - 4, (1,), generator=g)), int(torch.randint(0, size - 6, (1,), generator=g))
            self.x[i, 1, r:r + 4, c:c + 6] += 1.0
            self.y[i, r:r + 4, c:c + 6] = 2
            if i % 17 == 11:
                # unlabelled border, as exported by the annotation tool
                self.y[i, 0], self.y[i, -1] = 255, 255

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class TinyUNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.d1 = nn.Conv2d(3, 12, 3, padding=1)
        self.d2 = nn.Conv2d(12, 24, 3, padding=1)
        self.u1 = nn.Conv2d(36, 12, 3, padding=1)
        self.out = nn.Conv2d(12, classes, 1)

    def forward(self, x):
        a = F.relu(self.d1(x))
        b = F.relu(self.d2(F.max_pool2d(a, 2)))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.out(F.relu(self.u1(torch.cat([a, b], 1))))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--no-amp", dest="amp", action="store_false")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = DataLoader(Scenes(160), batch_size=8, shuffle=False)
    valid = DataLoader(Scenes(10, seed=3), batch_size=10)
    model = TinyUNet(3).to(device)
    criterion = nn.CrossEntropyLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=args.amp)
    for ep in range(args.epochs):
        model.train()
        for x, y in train:
            x, y = x.to(device), y.to(device)
            with torch.autocast(device, dtype=torch.float16, enabled=args.amp):
                logits = model(x)
                loss = criterion(logits, y)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        model.eval()
        hit = n = 0
        with torch.no_grad():
            for x, y in valid:
                hit += (model(x.to(device)).argmax(1).cpu() == y).sum().item()
                n += y.numel()
        print(f"epoch {ep} loss {loss.item():.4f} val_pix_acc {hit / n:.3f}")


if __name__ == "__main__":
    main()
