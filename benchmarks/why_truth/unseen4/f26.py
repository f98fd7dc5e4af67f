"""Knowledge distillation with Accelerate: a frozen half precision teacher, a small student."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def make_digits(n, seed, classes=10, dim=32):
    w = torch.Generator().manual_seed(5)
    proto = torch.randn(classes, dim, generator=w)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return proto[y] + 1.1 * torch.randn(n, dim, generator=g), y


class MLP(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        return self.net(x)


def fit_teacher(train, epochs=4):
    """Stands in for the released teacher."""
    teacher = MLP(256)
    opt = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    for _ in range(epochs):
        for x, y in train:
            opt.zero_grad()
            F.cross_entropy(teacher(x), y).backward()
            opt.step()
    return teacher.eval().requires_grad_(False)


def distill_loss(student_logits, teacher_logits, T):
    """KL to the teacher; samples on which the teacher is unsure count less."""
    q = F.log_softmax(student_logits / T, dim=-1)
    p = F.softmax(teacher_logits / T, dim=-1)
    entropy = -(p * p.log()).sum(-1)
    weight = 1.0 - entropy / math.log(p.size(-1))
    kl = F.kl_div(q, p.to(q.dtype), reduction="none").sum(-1)
    return (weight * kl).mean() * T * T


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--temperature", type=float, default=1.0)
    ap.add_argument("--alpha", type=float, default=0.7)
    ap.add_argument("--teacher-dtype", default="float16")
    args = ap.parse_args()
    torch.manual_seed(0)
    acc = Accelerator(cpu=not torch.cuda.is_available())
    train = DataLoader(TensorDataset(*make_digits(1024, 0)), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(*make_digits(512, 1)), batch_size=256)
    dtype = getattr(torch, args.teacher_dtype)
    teacher = fit_teacher(train).to(acc.device, dtype)
    student = MLP(24)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-2)
    student, opt, train, valid = acc.prepare(student, opt, train, valid)
    for ep in range(args.epochs):
        student.train()
        for x, y in train:
            with torch.no_grad():
                t_logits = teacher(x.to(dtype))
            s_logits = student(x)
            kd = distill_loss(s_logits, t_logits, args.temperature)
            loss = args.alpha * kd + (1 - args.alpha) * F.cross_entropy(s_logits, y)
            acc.backward(loss)
            acc.clip_grad_norm_(student.parameters(), 5.0)
            opt.step()
            opt.zero_grad()
        student.eval()
        with torch.no_grad():
            hit = sum((student(x).argmax(-1) == y).sum().item() for x, y in valid)
        acc.print(f"epoch {ep} loss {loss.item():.4f} val_acc {hit / 512:.3f}")


if __name__ == "__main__":
    main()
