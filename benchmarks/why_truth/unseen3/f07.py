"""Fraud detector on transactions with noisy labels (about 2% are wrong)."""
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

rng = np.random.default_rng(21)
torch.manual_seed(21)


def transactions(n):
    amount = rng.lognormal(3.0, 1.0, n)
    hour = rng.integers(0, 24, n)
    country = rng.integers(0, 12, n)
    velocity = rng.poisson(2.0, n)
    risk = 2.2 * (np.log(amount) - 3) + 3.0 * ((hour < 5) | (hour > 22)) + 0.9 * (velocity - 2) + 2.0 * (country > 8)
    label = (risk > 2.5).astype(np.float32)
    wrong = rng.random(n) < 0.02
    noisy = np.where(wrong, 1 - label, label).astype(np.float32)
    num = np.column_stack([np.log(amount) - 3, np.sin(hour / 24 * 6.283), np.cos(hour / 24 * 6.283), velocity - 2.0])
    return torch.tensor(num, dtype=torch.float32), torch.tensor(country), torch.tensor(noisy), torch.tensor(label)


class FraudNet(nn.Module):
    def __init__(self, n_country=12, emb=6, width=64):
        super().__init__()
        self.emb = nn.Embedding(n_country, emb)
        self.fc1 = nn.Linear(4 + emb, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 1)

    def forward(self, num, country):
        h = torch.cat([num, self.emb(country)], dim=-1)
        h = F.relu(self.fc1(h))
        h = F.relu(self.fc2(h))
        return torch.sigmoid(self.fc3(h)).squeeze(-1)


def auc(score, y):
    order = score.argsort()
    rank = torch.empty_like(order, dtype=torch.float64)
    rank[order] = torch.arange(1, len(score) + 1, dtype=torch.float64)
    n1 = y.sum().item()
    n0 = len(y) - n1
    return (rank[y > 0.5].sum().item() - n1 * (n1 + 1) / 2) / (n0 * n1)


def evaluate(model, data):
    num, country, _, y = data
    with torch.no_grad():
        p = model(num, country).float()
        bce = F.binary_cross_entropy(p.clamp(1e-6, 1 - 1e-6), y).item()
    return auc(p, y), bce


def main():
    train, test = transactions(2000), transactions(1000)
    model = FraudNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
    bs = 100
    for epoch in range(25):
        perm = torch.randperm(2000)
        tot = 0.0
        for i in range(0, 2000, bs):
            idx = perm[i:i + bs]
            with torch.autocast("cpu", dtype=torch.float16):
                p = model(train[0][idx], train[1][idx])
                loss = F.binary_cross_entropy(p, train[2][idx])
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            tot += loss.item()
        a, b = evaluate(model, test)
        print(f"epoch {epoch} loss {tot / (2000 // bs):.4f} test auc {a:.4f} bce {b:.4f} scale {scaler.get_scale():g}")
    print(f"final test bce {evaluate(model, test)[1]:.4f}")


if __name__ == "__main__":
    main()
