"""Predict the valve state from windows of temperature/pressure readings."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from f05_layers import ResConv, TemporalNorm


def make_windows(n, length=64, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(length)
    x = np.zeros((n, 2, length), dtype=np.float32)
    y = rng.integers(0, 4, n)
    for i in range(n):
        period = (8, 12, 18, 27)[y[i]]
        base_t = rng.normal(29.5, 0.8)
        base_p = rng.normal(10.1, 0.3)
        wob = np.sin(2 * np.pi * t / period + rng.uniform(0, 6.28))
        x[i, 0] = base_t + rng.uniform(0.2, 0.5) * wob + 0.1 * rng.standard_normal(length)
        x[i, 1] = base_p + 0.2 * np.roll(wob, 3) + 0.1 * rng.standard_normal(length)
    return torch.from_numpy(x), torch.from_numpy(y)


class ValveNet(nn.Module):
    def __init__(self, ch=16, classes=4):
        super().__init__()
        self.stem = nn.Conv1d(2, ch, 7)
        self.stem_norm = TemporalNorm(ch)
        self.body = nn.Sequential(ResConv(ch), ResConv(ch, dilation=2), ResConv(ch, dilation=4))
        self.head = nn.Linear(2 * ch, classes)

    def forward(self, x):
        h = F.gelu(self.stem_norm(self.stem(x)))
        h = self.body(h)
        h = torch.cat([h.mean(-1), h.amax(-1)], dim=1)
        return self.head(h)


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        acc = (model(x).argmax(-1) == y).float().mean().item()
    model.train()
    return acc


def main():
    torch.manual_seed(5)
    xtr, ytr = make_windows(600, seed=1)
    xva, yva = make_windows(200, seed=2)
    model = ValveNet()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    steps, batch = 60, 16
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=steps)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    gen = torch.Generator().manual_seed(0)

    for step in range(steps):
        idx = torch.randint(0, len(xtr), (batch,), generator=gen)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(xtr[idx])
            loss = F.cross_entropy(logits, ytr[idx])
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        gnorm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 10 == 0:
            print(f"[{step:3d}] loss={loss.item():.4f} |g|={gnorm.item():.3f}")

    print(f"final val accuracy {accuracy(model, xva, yva):.4f}")


if __name__ == "__main__":
    main()
