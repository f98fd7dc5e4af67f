"""Accelerate with gradient accumulation: softmax regression on a synthetic bag of features."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES = 20, 5


def build_dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=g)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    x = centres[y] + 0.7 * torch.randn(n, FEATURES, generator=g)
    return TensorDataset(x, y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(FEATURES, 32)
        self.fc2 = nn.Linear(32, CLASSES)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=8)
    args = parser.parse_args()

    set_seed(1)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=args.accumulation)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loader = DataLoader(build_dataset(1536, seed=4), batch_size=args.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    micro, window = 0, []
    for epoch in range(args.epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss / accelerator.gradient_accumulation_steps)
                optimizer.step()
                optimizer.zero_grad()
            window.append(loss.item())
            micro += 1
            if micro % 32 == 0:
                accelerator.print(f"epoch {epoch} micro-step {micro:4d} loss {sum(window) / len(window):.4f}")
                window.clear()


if __name__ == "__main__":
    main()
