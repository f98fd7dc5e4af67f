"""House price regression (tabular). Trains in rounds; each round restores the last checkpoint."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def make_table(n, seed):
    g = torch.Generator().manual_seed(seed)
    area = 40 + 160 * torch.rand(n, generator=g)
    rooms = torch.randint(1, 7, (n,), generator=g).float()
    age = 80 * torch.rand(n, generator=g)
    dist = 30 * torch.rand(n, generator=g)
    price = 2.1 * area + 15 * rooms - 0.8 * age - 4.0 * dist + 0.01 * area * rooms
    price = price + 5 * torch.randn(n, generator=g)
    x = torch.stack([area / 200, rooms / 7, age / 80, dist / 30], 1)
    return x, price.unsqueeze(1)


class PriceNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)


def save(path, model, opt, step):
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, path)


def load(path, model, opt):
    ck = torch.load(path, weights_only=True)
    model.load_state_dict(ck["model"])
    opt.load_state_dict(ck["opt"])
    return ck["step"]


def run_round(args, loader, path, device):
    """One preemptible slot on the cluster: restore, train for an epoch, save."""
    model = PriceNet().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 16, enabled=args.amp)
    step = load(path, model, opt) if os.path.exists(path) else 0
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        with torch.autocast(device, dtype=torch.float16, enabled=args.amp):
            pred = model(x)
        loss = (pred.float() - y).pow(2).sum(1).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        total += loss.item()
        step += 1
    save(path, model, opt, step)
    return model, total / len(loader)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=25)
    p.add_argument("--lr", type=float, default=1e-2)
    p.add_argument("--fp32", dest="amp", action="store_false")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(TensorDataset(*make_table(576, 0)), batch_size=64, shuffle=True)
    vx, vy = make_table(512, 1)
    path = os.path.join(tempfile.mkdtemp(), "last.pt")
    for r in range(args.rounds):
        model, loss = run_round(args, loader, path, device)
        if (r + 1) % 5 == 0:
            with torch.no_grad():
                mae = (model(vx.to(device)).cpu() - vy).abs().mean().item()
            print(f"round {r + 1} mse {loss:.1f} val_mae {mae:.2f}")
