"""Keypoint regression, FP16 autocast, GradScaler with PyTorch's default scale."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(50, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.points = nn.Linear(128, 14)

    def forward(self, x):
        return self.points(self.features(x))


def pose_data(n=1024):
    g = torch.Generator().manual_seed(17)
    x = torch.randn(n, 50, generator=g)
    w = torch.randn(50, 14, generator=g)
    return TensorDataset(x, 100 + 30 * torch.tanh(x @ w / 7))


def parse_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--batch", type=int, default=64)
    return ap.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    loader = DataLoader(pose_data(), batch_size=args.batch, shuffle=True)
    model = PoseNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu")
    skipped = 0
    for epoch in range(args.epochs):
        total = 0.0
        for x, target in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16):
                pred = model(x)
            loss = nn.functional.mse_loss(pred.float(), target)
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < before
            total += loss.item()
        print(f"epoch {epoch} mse {total / len(loader):9.3f} scale {scaler.get_scale():g} skipped {skipped}")


if __name__ == "__main__":
    main()
