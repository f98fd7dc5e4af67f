"""CNN classifier, FP16 autocast, gradient clipping, SGD with cosine schedule."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--clip", type=float, default=1.0)
    return parser.parse_args()


def dataset(n=768):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 5, (n,), generator=g)
    protos = torch.randn(5, 1, 12, 12, generator=g)
    x = protos[y] + 0.7 * torch.randn(n, 1, 12, 12, generator=g)
    return TensorDataset(x, y)


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 12, 3, padding=1)
        self.b1 = nn.BatchNorm2d(12)
        self.c2 = nn.Conv2d(12, 24, 3, padding=1)
        self.b2 = nn.BatchNorm2d(24)
        self.fc = nn.Linear(24 * 9, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.b1(self.c1(x))), 2)
        x = F.max_pool2d(F.relu(self.b2(self.c2(x))), 2)
        return self.fc(x.flatten(1))


def train_epoch(model, loader, optimizer, scaler, clip):
    model.train()
    total, correct, seen = 0.0, 0, 0
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
            loss = F.cross_entropy(logits, y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item() * len(y)
        correct += (logits.argmax(1) == y).sum().item()
        seen += len(y)
    return total / seen, correct / seen


def main():
    args = get_args()
    torch.manual_seed(0)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
    loader = DataLoader(dataset(), batch_size=32, shuffle=True)
    for epoch in range(args.epochs):
        start = time.time()
        loss, acc = train_epoch(model, loader, optimizer, scaler, args.clip)
        scheduler.step()
        print(f"epoch {epoch}: loss {loss:.4f} acc {acc:.3f} ({time.time() - start:.1f}s)")


if __name__ == "__main__":
    main()
