"""Accelerate bf16 + accumulation: noisy-label classification with heavy-tailed inputs."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

HP = {"lr": 0.05, "momentum": 0.9, "accum": 4, "batch": 16, "epochs": 4, "clip": 1.0, "loss_mult": 1024.0}


def table(n, seed, noise):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    x = torch.randn(n, 24, generator=g) / torch.rand(n, 1, generator=g).clamp(min=0.05).sqrt()
    y = (torch.tanh(x) @ w).argmax(1)
    flip = torch.rand(n, generator=g) < noise
    y = torch.where(flip, torch.randint(0, 3, (n,), generator=g), y)
    return TensorDataset(x, y)


def main():
    set_seed(55)
    acc = Accelerator(mixed_precision="bf16", cpu=True, gradient_accumulation_steps=HP["accum"])
    model = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = torch.optim.SGD(model.parameters(), lr=HP["lr"], momentum=HP["momentum"])
    train = DataLoader(table(4000, 1, 0.35), batch_size=HP["batch"], shuffle=True)
    val = DataLoader(table(1500, 2, 0.0), batch_size=250)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=HP["epochs"] * len(train) // HP["accum"] + HP["epochs"])
    model, opt, train, val = acc.prepare(model, opt, train, val)
    seen = 0
    for epoch in range(HP["epochs"]):
        for x, y in train:
            with acc.accumulate(model):
                loss = F.cross_entropy(model(x).float(), y)
                acc.backward(loss * HP["loss_mult"])
                if acc.sync_gradients:
                    for p in model.parameters():
                        p.grad.div_(HP["loss_mult"])
                    acc.clip_grad_norm_(model.parameters(), HP["clip"])
                opt.step()
                if acc.sync_gradients:
                    sched.step()
                opt.zero_grad()
            if seen % 100 == 0:
                acc.print(f"epoch {epoch} batch {seen} loss {loss.item():.4f}")
            seen += 1
    model.eval()
    tot = n = 0
    with torch.no_grad():
        for x, y in val:
            tot += F.cross_entropy(model(x).float(), y, reduction="sum").item()
            n += len(y)
    print(f"val_loss {tot / n:.4f}")


if __name__ == "__main__":
    main()
