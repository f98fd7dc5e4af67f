"""Accelerate: classify vibration windows; each window is standardised inside the model."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

WINDOW = 32
MACHINES = 3


def windows(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, MACHINES, (n,), generator=g)
    t = torch.arange(WINDOW) / WINDOW
    frequency = (2.0 + 2.0 * y).unsqueeze(1)
    phase = 6.28 * torch.rand(n, 1, generator=g)
    wave = torch.sin(6.28 * frequency * t + phase)
    # the sensor rests on a supply voltage
    offset = 3.0 + 6.0 * torch.rand(n, 1, generator=g)
    signal = offset + 0.6 * wave + 0.1 * torch.randn(n, WINDOW, generator=g)
    return TensorDataset(signal, y)


class WindowNorm(nn.Module):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        mean_square = (x * x).mean(-1, keepdim=True)
        std = torch.sqrt(mean_square - mean * mean)
        return (x - mean) / (std + 1e-3)


class VibrationNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.front = nn.Linear(WINDOW, WINDOW)
        nn.init.eye_(self.front.weight)
        nn.init.zeros_(self.front.bias)
        self.norm = WindowNorm()
        self.body = nn.Sequential(nn.Linear(WINDOW, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, MACHINES)

    def forward(self, x):
        return self.head(self.body(self.norm(self.front(x))))


def main():
    set_seed(6)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = VibrationNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(windows(1600), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (x, y) in enumerate(loader):
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step:3d} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
