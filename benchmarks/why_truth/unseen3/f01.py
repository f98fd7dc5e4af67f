"""SimCLR style pre-training on synthetic sensor snippets, then a kNN probe."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_data(n_classes=6, per_class=80, length=32, seed=0):
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, length)
    xs, ys = [], []
    for c in range(n_classes):
        for _ in range(per_class):
            phase = rng.uniform(0, 2 * np.pi)
            amp = rng.uniform(0.8, 1.2)
            sig = amp * np.sin(2 * np.pi * (c + 1) * t + phase)
            xs.append(sig + 0.1 * rng.standard_normal(length))
            ys.append(c)
    return torch.tensor(np.array(xs), dtype=torch.float32), torch.tensor(ys)


class Encoder(nn.Module):
    def __init__(self, length=32, width=64, out=32):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(length, width), nn.LayerNorm(width), nn.GELU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(),
        )
        self.proj = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))

    def forward(self, x):
        return F.normalize(self.proj(self.backbone(x)), dim=-1)


class NTXent(nn.Module):
    def __init__(self, temperature=0.07):
        super().__init__()
        self.t = temperature

    def forward(self, z1, z2):
        logits = z1 @ z2.t() / self.t
        e = torch.exp(logits)
        pos = torch.diagonal(e)
        l12 = -torch.log(pos / e.sum(dim=1))
        l21 = -torch.log(pos / e.sum(dim=0))
        return 0.5 * (l12 + l21).mean()


def augment(x, gen):
    shift = int(torch.randint(0, 32, (1,), generator=gen))
    x = torch.roll(x, shift, dims=1)
    scale = 0.8 + 0.4 * torch.rand(x.size(0), 1, generator=gen)
    return x * scale + 0.15 * torch.randn(x.shape, generator=gen)


@torch.no_grad()
def knn_accuracy(model, x, y, k=5):
    model.eval()
    h = F.normalize(model.backbone(x).float(), dim=-1)
    sim = h @ h.t()
    sim.fill_diagonal_(-1)
    nn_idx = sim.topk(k, dim=1).indices
    pred = torch.mode(y[nn_idx], dim=1).values
    model.train()
    return (pred == y).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--temperature", type=float, default=0.07)
    args = p.parse_args()

    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    x, y = make_data()
    model = Encoder()
    crit = NTXent(args.temperature)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)

    last = None
    for step in range(args.steps):
        idx = torch.randint(0, x.size(0), (args.batch,), generator=gen)
        a, b = augment(x[idx], gen), augment(x[idx], gen)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = crit(model(a), model(b))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        last = loss.item()
        if step % 10 == 0:
            print(f"step {step:4d}  loss {last:.4f}  scale {scaler.get_scale():g}")

    print(f"knn accuracy {knn_accuracy(model, x, y):.4f}")
    print(f"final loss {last:.4f}")


if __name__ == "__main__":
    main()
