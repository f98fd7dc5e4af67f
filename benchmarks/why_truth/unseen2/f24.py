"""Accelerate: rank items with scores that are standardised over the batch before the loss."""
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

FEATURES = 9


class Items(Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, FEATURES, generator=g)
        weight = torch.linspace(-1.0, 1.0, FEATURES)
        self.y = torch.tanh(self.x @ weight) + 0.1 * torch.randn(size, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Scorer(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def standardise(v):
    return (v - v.mean()) / (v.std() + 1e-3)


def main():
    set_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = Scorer()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    train = Items(641, seed=3)
    loader = DataLoader(train, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(4):
        model.train()
        for index, (x, y) in enumerate(loader):
            score = model(x).float()
            loss = nn.functional.mse_loss(standardise(score), standardise(y))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            if index % 5 == 0:
                accelerator.print(f"epoch {epoch} batch {index:2d} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
