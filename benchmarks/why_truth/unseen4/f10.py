"""Click-through model: sparse embedding tables with SGD, dense tower with Adam."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_clicks(n, cards=(50, 30, 20), dense=4, seed=0):
    w = torch.Generator().manual_seed(99)
    effects = [1.2 * torch.randn(c, generator=w) for c in cards]
    dw = torch.randn(dense, generator=w)
    g = torch.Generator().manual_seed(seed)
    cats = torch.stack([torch.randint(0, c, (n,), generator=g) for c in cards], 1)
    x = torch.randn(n, dense, generator=g)
    logit = sum(e[cats[:, i]] for i, e in enumerate(effects)) + x @ dw
    y = (torch.rand(n, generator=g) < torch.sigmoid(1.5 * logit)).float()
    return cats, x, y


class Tables(nn.Module):
    def __init__(self, cards, dim):
        super().__init__()
        self.tabs = nn.ModuleList(nn.Embedding(c, dim) for c in cards)
        for t in self.tabs:
            nn.init.normal_(t.weight, std=0.05)

    def forward(self, cats):
        return torch.cat([t(cats[:, i]) for i, t in enumerate(self.tabs)], 1)


class CTR(nn.Module):
    def __init__(self, cards, dense, dim=8):
        super().__init__()
        self.tables = Tables(cards, dim)
        self.tower = nn.Sequential(nn.Linear(dim * len(cards) + dense, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, cats, x):
        return self.tower(torch.cat([self.tables(cats), x], 1)).squeeze(1)


def auc(score, y):
    order = score.argsort()
    ranks = torch.empty_like(order, dtype=torch.float64)
    ranks[order] = torch.arange(1, len(y) + 1, dtype=torch.float64)
    pos = y.sum().item()
    return ((ranks[y > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(y) - pos))).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr-dense", type=float, default=2e-3)
    p.add_argument("--lr-sparse", type=float, default=1.0)
    p.add_argument("--no-amp", dest="amp", action="store_false")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cards = (50, 30, 20)
    train = DataLoader(TensorDataset(*make_clicks(6400)), batch_size=128, shuffle=True)
    vc, vx, vy = make_clicks(2000, seed=5)
    model = CTR(cards, 4).to(device)
    opt_dense = torch.optim.Adam(model.tower.parameters(), lr=args.lr_dense)
    opt_sparse = torch.optim.SGD(model.tables.parameters(), lr=args.lr_sparse)
    scaler = torch.amp.GradScaler(device, enabled=args.amp)
    for ep in range(args.epochs):
        for c, x, y in train:
            c, x, y = c.to(device), x.to(device), y.to(device)
            opt_dense.zero_grad()
            opt_sparse.zero_grad()
            with torch.autocast(device, dtype=torch.float16, enabled=args.amp):
                out = model(c, x)
            loss = F.binary_cross_entropy_with_logits(out.float(), y)
            scaler.scale(loss).backward()
            scaler.step(opt_dense)
            opt_sparse.step()
            scaler.update()
        with torch.no_grad():
            s = model(vc.to(device), vx.to(device)).cpu()
        print(f"epoch {ep} loss {loss.item():.4f} val_auc {auc(s, vy):.4f}")


if __name__ == "__main__":
    main()
