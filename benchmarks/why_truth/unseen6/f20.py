"""Denoising regressor for 1-D signals; the averaged weights are what gets shipped."""
import copy
import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(21)


def signals(n, length=64):
    t = torch.linspace(0, 1, length)
    f = torch.randint(1, 6, (n, 1)) + 0.0
    ph = 2 * math.pi * torch.rand(n, 1)
    clean = torch.sin(2 * math.pi * f * t + ph) + 0.5 * torch.sign(torch.sin(2 * math.pi * t * (f + 1) + ph))
    return clean + 0.5 * torch.randn(n, length), clean


class Denoiser(nn.Module):
    def __init__(self, length=64, width=128):
        super().__init__()
        self.inp = nn.Linear(length, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.out = nn.Linear(width, length)

    def forward(self, x):
        h = F.gelu(self.inp(x))
        for m in self.mid:
            h = h + F.gelu(m(h))
        return self.out(h)


class WeightAverage:
    def __init__(self, model, decay, dtype):
        self.decay = decay
        self.shadow = copy.deepcopy(model).to(dtype).eval()
        for p in self.shadow.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p.detach().to(s.dtype), 1 - self.decay)


def batches(x, y, size, steps):
    for _ in range(steps):
        idx = torch.randint(0, len(x), (size,))
        yield x[idx], y[idx]


def main(dtype=torch.bfloat16):
    xtr, ytr = signals(6000)
    xva, yva = signals(800)
    model = Denoiser()
    average = WeightAverage(model, decay=0.997, dtype=dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(batches(xtr, ytr, 64, 2200)):
        with torch.autocast("cpu", dtype=dtype):
            pred = model(x)
        loss = F.mse_loss(pred.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        average.update(model)
        if step % 200 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        ref = average.shadow(xva.to(next(average.shadow.parameters()).dtype)).float()
    print(f"val_mse {F.mse_loss(ref, yva).item():.4f}")


if __name__ == "__main__":
    main()
