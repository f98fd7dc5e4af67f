"""Custom autograd Function (swish-exp gate) that runs in single precision inside an autocast model."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.amp import custom_bwd, custom_fwd
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class ExpGate(torch.autograd.Function):
    """y = x / (1 + exp(-x)) with exp kept for the backward."""
    @staticmethod
    @custom_fwd(device_type=DEVICE, cast_inputs=torch.float32)
    def forward(ctx, x):
        e = torch.exp(-x.clamp(min=-60.0))
        ctx.save_for_backward(x, e)
        return x / (1 + e)

    @staticmethod
    @custom_bwd(device_type=DEVICE)
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        s = 1 / (1 + e)
        return g * (s + x * s * (1 - s))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(10, 64)
        self.b = nn.Linear(64, 64)
        self.c = nn.Linear(64, 3)

    def forward(self, x):
        return self.c(ExpGate.apply(self.b(ExpGate.apply(self.a(x)))))


def spirals(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    r = torch.rand(n, generator=g)
    a = 4 * r + 2.09 * y + 0.1 * torch.randn(n, generator=g)
    p = torch.stack([r * a.cos(), r * a.sin()], 1)
    # inputs are on a wide scale
    return torch.cat([p * 20, p.pow(2) * 20, (p * 3).sin() * 20, p.abs() * 20, torch.randn(n, 2, generator=g)], 1), y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--amp", type=int, default=1)
    args = p.parse_args()
    torch.manual_seed(0)
    amp = bool(args.amp)
    train = DataLoader(TensorDataset(*spirals(1024, 0)), batch_size=64, shuffle=True)
    vx, vy = spirals(512, 1)
    model = Gated().to(DEVICE)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, enabled=amp)
    for ep in range(args.epochs):
        for x, y in train:
            with torch.autocast(DEVICE, dtype=torch.float16, enabled=amp):
                loss = F.cross_entropy(model(x.to(DEVICE)).float(), y.to(DEVICE))
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        with torch.no_grad():
            acc = (model(vx.to(DEVICE)).argmax(1).cpu() == vy).float().mean().item()
        print(f"epoch {ep} loss {loss.item():.4f} val_acc {acc:.3f}")


if __name__ == "__main__":
    main()
