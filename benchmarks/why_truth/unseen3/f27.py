"""Keyword spotting on MFCC-like frames; large effective batch by gradient accumulation."""
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def mfcc(n, seed, frames=20, coef=10):
    rng = np.random.default_rng(seed)
    tmpl = np.random.default_rng(8).standard_normal((5, frames, coef))
    y = rng.integers(0, 5, n)
    x = np.stack([np.roll(tmpl[k], rng.integers(-2, 3), 0) for k in y]) + 1.2 * rng.standard_normal((n, frames, coef))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class SpotNet(nn.Module):
    def __init__(self, coef=10, width=32):
        super().__init__()
        self.frame = nn.Linear(3 * coef, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        ctx = torch.cat([x.roll(1, 1), x, x.roll(-1, 1)], dim=-1)
        h = torch.relu(self.frame(ctx)).float()
        with torch.autocast("cpu", enabled=False):
            out, _ = self.gru(h)
        return self.head(out.mean(dim=1))


def train_epoch(model, opt, scaler, x, y, micro, accum, clip, gen):
    order = torch.randperm(len(x), generator=gen)
    opt.zero_grad(set_to_none=True)
    total = 0.0
    n_micro = len(order) // micro
    for j in range(n_micro):
        idx = order[j * micro:(j + 1) * micro]
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x[idx])
        loss = F.cross_entropy(logits.float(), y[idx]) / accum
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        if (j + 1) % accum == 0:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
        total += loss.item() * accum
        if j % 20 == 0:
            print(f"  micro batch {j} loss {loss.item() * accum:.4f}")
    return total / n_micro


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--micro", type=int, default=10)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--clip", type=float, default=2.0)
    ap.add_argument("--epochs", type=int, default=5)
    args = ap.parse_args()
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    x, y = mfcc(600, 0)
    xt, yt = mfcc(200, 1)
    model = SpotNet()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for epoch in range(args.epochs):
        loss = train_epoch(model, opt, scaler, x, y, args.micro, args.accum, args.clip, gen)
        print(f"epoch {epoch} loss {loss:.4f}")
    with torch.no_grad():
        acc = (model(xt).argmax(-1) == yt).float().mean().item()
    print(f"final test accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
