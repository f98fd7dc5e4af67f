"""Distil a big classifier into a small one with Accelerate."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def blobs(n, seed, classes=8, dim=12):
    rng = np.random.default_rng(seed)
    c = np.random.default_rng(77).standard_normal((classes, dim)) * 2.0
    y = rng.integers(0, classes, n)
    x = c[y] + rng.standard_normal((n, dim))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class MLP(nn.Module):
    def __init__(self, width, depth, classes=8, dim=12):
        super().__init__()
        layers = [nn.Linear(dim, width), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(width, classes))

    def forward(self, x):
        return self.net(x)


class DistillLoss(nn.Module):
    def __init__(self, T=1.5, alpha=0.7):
        super().__init__()
        self.T, self.alpha = T, alpha

    def forward(self, student, teacher, y):
        ps = torch.softmax(student / self.T, dim=-1)
        pt = torch.softmax(teacher / self.T, dim=-1)
        soft = (pt * torch.log(pt / ps)).sum(dim=-1).mean() * self.T ** 2
        hard = F.cross_entropy(student, y)
        return self.alpha * soft + (1 - self.alpha) * hard


def pretrain_teacher(x, y, steps=150):
    teacher = MLP(96, 3)
    opt = torch.optim.Adam(teacher.parameters(), lr=4e-3)
    for _ in range(steps):
        i = torch.randint(0, len(x), (128,))
        loss = F.cross_entropy(teacher(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return teacher.eval().requires_grad_(False)


def main():
    set_seed(4)
    x, y = blobs(2400, 0)
    xt, yt = blobs(600, 1)
    teacher = pretrain_teacher(x, y)
    print(f"teacher acc {(teacher(xt).argmax(-1) == yt).float().mean():.4f}")

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    student = MLP(24, 2)
    opt = torch.optim.AdamW(student.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=48, shuffle=True)
    student, opt, loader = accelerator.prepare(student, opt, loader)
    crit = DistillLoss()
    teacher = teacher.half()

    step = 0
    for epoch in range(4):
        for xb, yb in loader:
            with torch.no_grad():
                t_logits = teacher(xb.half())
            with accelerator.autocast():
                s_logits = student(xb)
                loss = crit(s_logits, t_logits, yb)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(student.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            if step % 20 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1

    student.eval()
    with torch.no_grad():
        logits = student(xt).float()
        acc = (logits.argmax(-1) == yt).float().mean().item()
    print(f"student acc {acc:.4f}")
    print(f"final test ce {F.cross_entropy(logits, yt).item():.4f}")


if __name__ == "__main__":
    main()
