"""Multi-assay regression with missing labels."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def assays(n, g):
    x = torch.randn(n, 12, generator=g)
    w = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)) / 12 ** 0.5
    clean = torch.tanh(x @ w) * 2 + 0.5 * x[:, :1] * x[:, 1:2]
    y = clean + 0.1 * torch.randn(n, 5, generator=g)
    y[torch.rand(n, 5, generator=g) < 0.6] = float("nan")
    return x, y, clean


def masked_loss(pred, y):
    seen = torch.isfinite(y)
    target = torch.where(seen, y, torch.zeros_like(y))
    err = (pred.float() - target).square()
    return (err * seen).sum() / seen.sum().clamp(min=1)


def main():
    torch.manual_seed(7)
    g = torch.Generator().manual_seed(3)
    x, y, _ = assays(5000, g)
    vx, _, clean = assays(1000, g)
    net = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 5))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8)
    for epoch in range(8):
        for k, (bx, by) in enumerate(DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                pred = net(bx)
            loss = masked_loss(pred, by)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            if k % 40 == 0:
                print(f"epoch {epoch} batch {k} loss {loss.item():.4f}")
        sched.step()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        pred = net(vx).float()
    print(f"val_mse {(pred - clean).square().mean().item():.4f}")


if __name__ == "__main__":
    main()
