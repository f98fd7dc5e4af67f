"""Age regression from face embeddings, FP16 autocast."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class AgeNet(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(d, 128), nn.LayerNorm(128), nn.SiLU(),
            nn.Linear(128, 128), nn.LayerNorm(128), nn.SiLU(),
            nn.Linear(128, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def faces(n=1024):
    g = torch.Generator().manual_seed(9)
    x = torch.randn(n, 64, generator=g)
    w = torch.randn(64, generator=g)
    age = 40 + 12 * torch.tanh(x @ w / 8) * 2 + torch.randn(n, generator=g)
    return TensorDataset(x, age)


def train_step(model, optimizer, x, age):
    scaler = torch.amp.GradScaler("cpu")
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        pred = model(x)
        loss = (pred.float() - age).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@torch.no_grad()
def evaluate(model, loader):
    err = [(model(x) - age).abs() for x, age in loader]
    return torch.cat(err).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.manual_seed(0)
    train, val = random_split(faces(), [896, 128])
    train_loader = DataLoader(train, batch_size=64, shuffle=True)
    val_loader = DataLoader(val, batch_size=128)
    model = AgeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        losses = torch.stack([train_step(model, optimizer, x, a) for x, a in train_loader])
        print(f"epoch {epoch} train mse {losses.mean():.2f} val mae {evaluate(model, val_loader):.2f}")


if __name__ == "__main__":
    main()
