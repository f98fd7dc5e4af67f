"""Segmentation of blobs with an exponential moving average of the weights for evaluation."""
import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def blobs(n, seed, size=12):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:size, :size]
    img, mask = [], []
    for _ in range(n):
        m = np.zeros((size, size), bool)
        for _ in range(rng.integers(1, 3)):
            cy, cx, r = rng.uniform(2, size - 2, 2).tolist() + [rng.uniform(1.5, 3)]
            m |= (yy - cy) ** 2 + (xx - cx) ** 2 < r * r
        img.append(m * 0.9 + 0.6 * rng.standard_normal((size, size)))
        mask.append(m)
    return torch.tensor(np.array(img)[:, None], dtype=torch.float32), torch.tensor(np.array(mask)[:, None], dtype=torch.float32)


class UNetish(nn.Module):
    def __init__(self, c=6):
        super().__init__()
        self.d1 = nn.Conv2d(1, c, 3, padding=1)
        self.d2 = nn.Conv2d(c, 2 * c, 3, padding=1, stride=2)
        self.mid = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.out = nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.d1(x))
        b = F.relu(self.d2(a))
        b = F.relu(self.mid(b))
        return self.out(torch.cat([a, F.relu(self.up(b))], dim=1))


class ModelEMA:
    def __init__(self, model, decay=0.998, dtype=torch.bfloat16):
        self.decay = decay
        self.module = copy.deepcopy(model).to(dtype).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.mul_(self.decay).add_(p.to(e.dtype), alpha=1 - self.decay)


def dice(model, x, y):
    dt = next(model.parameters()).dtype
    with torch.no_grad():
        p = (model(x.to(dt)).float() > 0).float()
    return (2 * (p * y).sum() / (p.sum() + y.sum() + 1e-6)).item()


def main():
    torch.manual_seed(3)
    x, y = blobs(400, 0)
    xv, yv = blobs(100, 1)
    model = UNetish()
    ema = ModelEMA(model)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(0)
    for step in range(900):
        idx = torch.randint(0, len(x), (6,), generator=gen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x[idx])
        loss = F.binary_cross_entropy_with_logits(logits.float(), y[idx])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema.update(model)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"final ema dice {dice(ema.module, xv, yv):.4f}")


if __name__ == "__main__":
    main()
