"""BF16 autocast, accumulation, cosine schedule, EMA in FP32, a checkpoint in the middle."""
import argparse
import copy
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 4, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.adaptive_avg_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


class Ema:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.model.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)


def quadrant(n, g):
    y = torch.randint(0, 4, (n,), generator=g)
    x = 0.5 * torch.randn(n, 1, 12, 12, generator=g)
    for i, c in enumerate(y.tolist()):
        x[i, 0, (c // 2) * 6:(c // 2) * 6 + 6, (c % 2) * 6:(c % 2) * 6 + 6] += 0.7
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--accum", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = Net()
    ema = Ema(model, 0.95)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    ckpt = os.path.join(tempfile.gettempdir(), "h09.pt")
    for step in range(args.steps):
        opt.zero_grad()
        for _ in range(args.accum):
            x, y = quadrant(24, g)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y) / args.accum
            loss.backward()
        opt.step()
        sched.step()
        ema.update(model)
        if step == args.steps // 2:
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, ckpt)
            state = torch.load(ckpt)
            model.load_state_dict(state["model"])
            opt.load_state_dict(state["opt"])
        if step % 15 == 0:
            with torch.no_grad():
                xv, yv = quadrant(128, torch.Generator().manual_seed(77))
                val = F.cross_entropy(ema.model(xv), yv)
            print(f"step {step} loss {loss.item() * args.accum:.4f} ema val {val.item():.4f}")


if __name__ == "__main__":
    main()
