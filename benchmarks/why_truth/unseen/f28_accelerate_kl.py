"""Accelerate: distil a teacher with a hand-written KL divergence."""
import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class Student(nn.Module):
    def __init__(self, d=24, classes=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, classes))

    def forward(self, x):
        return self.net(x)


class KLDistillation(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.t = temperature

    def forward(self, student_logits, teacher_probs):
        q = torch.softmax(student_logits / self.t, dim=-1)
        kl = teacher_probs * torch.log(teacher_probs / q)
        return kl.sum(-1).mean() * self.t ** 2


def teacher_dataset(n=1280):
    g = torch.Generator().manual_seed(8)
    x = torch.randn(n, 24, generator=g)
    w = torch.randn(24, 12, generator=g)
    logits = x @ w
    probs = torch.softmax(logits, -1)
    # the dump keeps 4 decimals
    probs = (probs * 1e4).round() / 1e4
    sharp = torch.arange(n) % 2 == 0
    probs[:640] = torch.softmax(logits[:640] / 6, -1)
    return TensorDataset(x, probs), sharp


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--accum", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=args.accum)
    dataset, _ = teacher_dataset()
    loader = DataLoader(dataset, batch_size=32, shuffle=False)
    model = Student()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    criterion = KLDistillation(2.0)
    for epoch in range(args.epochs):
        for i, (x, probs) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = criterion(model(x), probs)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if i % 10 == 0:
                accelerator.print(f"epoch {epoch} it {i} kl {loss.item():.4f}")


if __name__ == "__main__":
    main()
