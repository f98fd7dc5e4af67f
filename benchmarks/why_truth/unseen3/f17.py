"""Half precision CNN with FP32 master weights and a fixed loss scale (port of an old training script)."""
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def shapes(n, seed):
    rng = np.random.default_rng(seed)
    x = 0.3 * rng.standard_normal((n, 1, 12, 12))
    y = rng.integers(0, 4, n)
    for i in range(n):
        r, c = rng.integers(1, 6, 2)
        if y[i] == 0:
            x[i, 0, r, c:c + 6] += 1.5
        elif y[i] == 1:
            x[i, 0, r:r + 6, c] += 1.5
        elif y[i] == 2:
            x[i, 0, range(r, r + 6), range(c, c + 6)] += 1.5
        else:
            x[i, 0, r:r + 3, c:c + 3] += 1.0
        if rng.random() < 0.01:
            x[i] *= 25.0
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class SmallCNN(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.c1 = nn.Conv2d(1, ch, 3, padding=1)
        self.c2 = nn.Conv2d(ch, ch, 3, padding=1, stride=2)
        self.fc = nn.Linear(ch * 36, 4)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.relu(self.c2(x))
        return self.fc(x.flatten(1))


class FP16Trainer:
    def __init__(self, model, lr, loss_scale):
        self.model = model.half()
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.master = [p.detach().clone().float().requires_grad_() for p in self.params]
        self.opt = torch.optim.SGD(self.master, lr=lr, momentum=0.9)
        self.loss_scale = loss_scale
        self.skipped = 0

    def step(self, x, y):
        logits = self.model(x.half())
        loss = F.cross_entropy(logits.float(), y)
        for p in self.params:
            p.grad = None
        (loss * self.loss_scale).backward()
        for m, p in zip(self.master, self.params):
            m.grad = p.grad.float() / self.loss_scale
        nn.utils.clip_grad_norm_(self.master, 1.0)
        self.opt.step()
        with torch.no_grad():
            for m, p in zip(self.master, self.params):
                p.copy_(m)
        return loss.item()


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x.half()).argmax(-1) == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--loss-scale", type=float, default=16384.0)
    ap.add_argument("--steps", type=int, default=180)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    torch.manual_seed(0)
    x, y = shapes(800, 0)
    xt, yt = shapes(300, 1)
    tr = FP16Trainer(SmallCNN(), args.lr, args.loss_scale)
    gen = torch.Generator().manual_seed(4)
    for step in range(args.steps):
        idx = torch.randint(0, len(x), (16,), generator=gen)
        loss = tr.step(x[idx], y[idx])
        if step % 10 == 0:
            print(f"step {step} loss {loss:.4f}")
    print(f"final test accuracy {accuracy(tr.model, xt, yt):.4f}")


if __name__ == "__main__":
    main()
