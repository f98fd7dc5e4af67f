"""Keyword spotting on log-free filterbank energies. Layers live in f05_layers.py."""
import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from f05_layers import KeywordNet


class Keywords(Dataset):
    """Four synthetic keywords, each a pair of formants that move in time."""
    def __init__(self, n, frames=20, bands=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 4, (n,), generator=g)
        band = torch.arange(bands).float()
        t = torch.arange(frames).float() / frames
        start = torch.tensor([4.0, 18.0, 8.0, 14.0])[self.y]
        slope = torch.tensor([10.0, -10.0, 3.0, -3.0])[self.y]
        centre = start[:, None] + slope[:, None] * t + torch.randn(n, 1, generator=g)
        env = torch.exp(-0.5 * ((band[None, None] - centre[:, :, None]) / 1.5) ** 2)
        gain = 600 + 900 * torch.rand(n, 1, 1, generator=g)
        self.x = gain * (env + 0.1 * torch.rand(n, frames, bands, generator=g))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def evaluate(model, loader, device, amp):
    model.eval()
    hit = 0
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16, enabled=amp):
        for x, y in loader:
            hit += (model(x.to(device)).argmax(-1).cpu() == y).sum().item()
    return hit / len(loader.dataset)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--precision", choices=["fp16", "fp32"], default="fp16")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = args.precision == "fp16"
    train = DataLoader(Keywords(768), batch_size=32, shuffle=True)
    valid = DataLoader(Keywords(256, seed=1), batch_size=64)
    model = KeywordNet(24, 48, 4).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=2048.0, enabled=amp)
    for ep in range(args.epochs):
        model.train()
        run = 0.0
        for x, y in train:
            x, y = x.to(device), y.to(device)
            with torch.autocast(device, dtype=torch.float16, enabled=amp):
                loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            run += loss.item()
        print(f"epoch {ep} loss {run / len(train):.4f} val_acc {evaluate(model, valid, device, amp):.3f}")


if __name__ == "__main__":
    main()
