"""Image denoiser with an exponential moving average of the weights used for evaluation."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


def textures(n, size=12, seed=None):
    g = torch.Generator().manual_seed(seed) if seed is not None else None
    k = torch.rand(n, 2, generator=g) * 1.2
    ph = torch.rand(n, 1, 1, generator=g) * 6.28
    yy, xx = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
    img = torch.sin(k[:, 0, None, None] * yy + k[:, 1, None, None] * xx + ph)
    clean = img.unsqueeze(1)
    return clean + 0.5 * torch.randn(clean.shape, generator=g), clean


class WeightEMA:
    def __init__(self, model, decay, dtype):
        self.decay = decay
        self.module = copy.deepcopy(model).to(dtype).eval()
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.mul_(self.decay).add_(p.to(e.dtype), alpha=1 - self.decay)

    @torch.no_grad()
    def __call__(self, x):
        dt = next(self.module.parameters()).dtype
        return self.module(x.to(dt)).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=800)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--decay", type=float, default=0.998)
    ap.add_argument("--ema-dtype", default="bfloat16")
    args = ap.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 144),
                          nn.Unflatten(1, (1, 12, 12))).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    vx, vy = (t.to(device) for t in textures(256, seed=9))
    ema = None
    for it in range(args.iters):
        x, y = (t.to(device) for t in textures(32))
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(x)
        loss = F.mse_loss(out.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it == 5:
            ema = WeightEMA(model, args.decay, getattr(torch, args.ema_dtype))
        elif ema is not None:
            ema.update(model)
        if (it + 1) % 160 == 0:
            with torch.no_grad():
                raw = F.mse_loss(model(vx), vy).item()
            print(f"it {it + 1} val_mse {raw:.4f} val_mse_ema {F.mse_loss(ema(vx), vy).item():.4f}")


if __name__ == "__main__":
    main()
