"""Train in single precision, serve in half: logits and probabilities are compared after conversion."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def blobs(n, seed):
    w = torch.Generator().manual_seed(7)
    centre = 2.2 * torch.randn(6, 16, generator=w)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 6, (n,), generator=g)
    return centre[y] + 1.5 * torch.randn(n, 16, generator=g), y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.f1 = nn.Linear(16, 64)
        self.f2 = nn.Linear(64, 6)

    def forward(self, x):
        return self.f2(F.relu(self.f1(self.norm(x))))


@torch.no_grad()
def accuracy(model, x, y, dtype):
    return (model(x.to(dtype)).float().argmax(-1) == y).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--serve-dtype", default="float16")
    args = p.parse_args()
    torch.manual_seed(0)
    dt = getattr(torch, args.serve_dtype)
    train = DataLoader(TensorDataset(*blobs(1536, 0)), batch_size=64, shuffle=True)
    vx, vy = blobs(1000, 1)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs)
    for ep in range(args.epochs):
        model.train()
        for x, y in train:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        sched.step()
        model.eval()
        served = copy.deepcopy(model).to(dt)
        print(f"epoch {ep} loss {loss.item():.4f} val_acc {accuracy(model, vx, vy, torch.float32):.3f} "
              f"served_acc {accuracy(served, vx, vy, dt):.3f}")


if __name__ == "__main__":
    main()
