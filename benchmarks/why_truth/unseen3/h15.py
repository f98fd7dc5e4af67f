"""Accelerate, bf16: corrupt windows are filtered in the loader, cyclic learning rate gives loss bumps."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def windows(n, seed, length=24):
    rng = np.random.default_rng(seed)
    t = np.arange(length + 1)
    f = rng.uniform(0.15, 0.6, (n, 1))
    s = np.sin(f * t + rng.uniform(0, 6.28, (n, 1))) + 0.03 * rng.standard_normal((n, length + 1))
    bad = rng.random(n) < 0.02
    s[bad, rng.integers(0, length, bad.sum())] = rng.choice([np.nan, np.inf, 1e38], bad.sum())
    return torch.tensor(s[:, :-1], dtype=torch.float32), torch.tensor(s[:, -1], dtype=torch.float32)


def drop_corrupt(batch):
    x = torch.stack([b[0] for b in batch])
    y = torch.stack([b[1] for b in batch])
    keep = torch.isfinite(x).all(1) & torch.isfinite(y) & (x.abs().amax(1) < 1e3)
    return x[keep], y[keep]


class ARNet(nn.Module):
    def __init__(self, length=24, width=48):
        super().__init__()
        self.lin = nn.Linear(length, 1)
        self.net = nn.Sequential(nn.Linear(length, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, x):
        return (self.lin(x) + self.net(x)).squeeze(-1)


def main():
    set_seed(0)
    acc = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    x, y = windows(2000, 0)
    xt, yt = windows(400, 1)
    print(f"corrupt windows {int((~torch.isfinite(x).all(1)).sum())}")
    model = ARNet()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=50)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, collate_fn=drop_corrupt)
    model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
    best, step = float("inf"), 0
    for epoch in range(6):
        for xb, yb in loader:
            with acc.accumulate(model):
                with acc.autocast():
                    pred = model(xb)
                loss = F.mse_loss(pred.float(), yb)
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
            best = min(best, loss.item())
            if step % 30 == 0:
                acc.print(f"epoch {epoch} step {step} loss {loss.item():.5f} best {best:.5f} lr {sched.get_last_lr()[0]:.2e}")
            step += 1
    xt, yt = drop_corrupt(list(zip(xt, yt)))
    with torch.no_grad():
        print(f"final test mse {F.mse_loss(model(xt).float(), yt).item():.5f}")


if __name__ == "__main__":
    main()
