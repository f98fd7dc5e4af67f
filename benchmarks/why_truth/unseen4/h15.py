"""CLIP-style contrastive training with a learned temperature; similarities and logsumexp in single precision."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def pairs(n, seed):
    w = torch.Generator().manual_seed(8)
    a, b = torch.randn(8, 24, generator=w), torch.randn(8, 20, generator=w)
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 8, generator=g)
    img = z @ a + 0.3 * torch.randn(n, 24, generator=g)
    txt = z @ b + 0.3 * torch.randn(n, 20, generator=g)
    # stored compactly on disk
    return img.half(), txt.half()


class CLIP(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.img = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, dim))
        self.txt = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, dim))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, i, t):
        a = F.normalize(self.img(i).float(), dim=-1)
        b = F.normalize(self.txt(t).float(), dim=-1)
        with torch.autocast(a.device.type, enabled=False):
            return self.logit_scale.clamp(max=math.log(100)).exp() * a @ b.T


def clip_loss(s):
    diag = s.diagonal()
    return 0.5 * ((s.logsumexp(0) - diag).mean() + (s.logsumexp(1) - diag).mean())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--precision", default="fp16")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = args.precision == "fp16"
    train = DataLoader(TensorDataset(*pairs(1024, 0)), batch_size=64, shuffle=True, drop_last=True)
    vi, vt = pairs(128, 1)
    model = CLIP().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=amp)
    for ep in range(args.epochs):
        for i, t in train:
            with torch.autocast(device, dtype=torch.float16, enabled=amp):
                s = model(i.float().to(device), t.float().to(device))
            loss = clip_loss(s)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        with torch.no_grad():
            s = model(vi.float().to(device), vt.float().to(device))
        r1 = (s.argmax(1).cpu() == torch.arange(128)).float().mean().item()
        print(f"epoch {ep} loss {loss.item():.4f} scale {model.logit_scale.exp().item():.1f} val_r1 {r1:.3f}")


if __name__ == "__main__":
    main()
