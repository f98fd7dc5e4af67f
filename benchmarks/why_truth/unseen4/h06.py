"""Revenue forecast in raw dollars: the loss is in the millions, computed in single precision."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def shops(n, seed):
    g = torch.Generator().manual_seed(seed)
    size = 50 + 200 * torch.rand(n, generator=g)
    traffic = 100 + 900 * torch.rand(n, generator=g)
    promo = (torch.rand(n, generator=g) < 0.3).float()
    rev = 40 * size + 12 * traffic + 2500 * promo + 300 * torch.randn(n, generator=g)
    return torch.stack([size / 250, traffic / 1000, promo], 1), rev.unsqueeze(1)


class Revenue(nn.Module):
    """The network works in units of `unit` dollars."""
    def __init__(self, unit=5000.0):
        super().__init__()
        self.unit = unit
        self.net = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.net(x).float() * self.unit


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--no-amp", dest="amp", action="store_false")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = DataLoader(TensorDataset(*shops(1024, 0)), batch_size=64, shuffle=True)
    vx, vy = shops(256, 1)
    model = Revenue().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    # raw losses are about 1e7, so start far below the default scale
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** -10, growth_interval=1000, enabled=args.amp)
    for ep in range(args.epochs):
        for x, y in train:
            with torch.autocast(device, dtype=torch.float16, enabled=args.amp):
                pred = model(x.to(device))
            loss = (pred - y.to(device)).pow(2).mean()
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        with torch.no_grad():
            mae = (model(vx.to(device)).cpu() - vy).abs().mean().item()
        print(f"epoch {ep} loss {loss.item():.0f} val_mae {mae:.1f}")


if __name__ == "__main__":
    main()
