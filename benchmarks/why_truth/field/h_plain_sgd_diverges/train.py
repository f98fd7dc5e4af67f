import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    p = argparse.ArgumentParser(description="house prices")
    p.add_argument("--lr", type=float, default=0.3)
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--warmup", type=int, default=60)
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def load():
    g = torch.Generator().manual_seed(9)
    rooms = torch.randint(1, 8, (512, 1), generator=g).float()
    area = rooms * 22 + 8 * torch.randn(512, 1, generator=g)
    age = torch.rand(512, 1, generator=g) * 40
    x = torch.cat([rooms, area / 50, age / 10], dim=1)
    y = 0.4 * rooms + 1.1 * area / 50 - 0.3 * age / 10
    return TensorDataset(x, y)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(3, 64)
        self.fc2 = nn.Linear(64, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        x = nn.functional.leaky_relu(self.fc1(x), 0.2)
        x = x + nn.functional.leaky_relu(self.fc2(x), 0.2)
        return self.out(x)


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(load(), batch_size=32, shuffle=True)
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / args.warmup) ** 3)
    criterion = nn.MSELoss()
    step = 0
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            warmup.step()
            step += 1
            total += loss.item()
            if step % 8 == 0:
                print(f"step {step:4d} lr {warmup.get_last_lr()[0]:.4f} loss {loss.item():.5g}")
        print(f"epoch {epoch} mean loss {total / len(loader):.5g}")


if __name__ == "__main__":
    main()
