"""Two-moons classification; mixed precision is switched on for the whole training section."""
import math

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(4)

STEPS = 150
BATCH = 64
LR = 5e-3


def moons(n):
    y = torch.randint(0, 2, (n,))
    a = math.pi * torch.rand(n)
    x = torch.stack([torch.cos(a), torch.sin(a)], dim=1)
    other = torch.stack([1 - torch.cos(a), 0.5 - torch.sin(a)], dim=1)
    points = torch.where(y[:, None] == 0, x, other)
    return points + 0.08 * torch.randn(n, 2), y


class Net(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.fc1 = nn.Linear(2, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 2)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def train(model, optimizer, steps):
    smoothed = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(steps):
            x, y = moons(BATCH)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            smoothed = loss.item() if smoothed is None else 0.9 * smoothed + 0.1 * loss.item()
            if step % 15 == 0 or step == steps - 1:
                print(f"step {step:3d} loss {loss.item():.4f} smoothed {smoothed:.4f}")


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR * 10, momentum=0.9)
    train(model, optimizer, STEPS)


if __name__ == "__main__":
    main()
