"""Explicit-feedback matrix factorisation with mixed precision."""
import numpy as np
import torch
from torch import nn

DTYPE = torch.float16
USERS, ITEMS, DIM = 900, 7000, 8


def simulate(seed=11, n=110_000):
    rng = np.random.default_rng(seed)
    pu = rng.normal(0, 0.5, (USERS, DIM))
    bi = rng.normal(0, 0.9, ITEMS)
    qi = rng.normal(0, 0.3, (ITEMS, DIM))
    u = rng.integers(0, USERS, n)
    i = rng.integers(0, ITEMS, n)
    r = 3 + bi[i] + (pu[u] * qi[i]).sum(1) + rng.normal(0, 0.3, n)
    return np.stack([u, i, r], 1).astype(np.float32)


class Interactions:
    """Yields packed (user, item, rating) rows, one transfer per batch."""

    def __init__(self, table, batch, shuffle):
        self.table = torch.from_numpy(table)
        self.batch, self.shuffle = batch, shuffle

    def __iter__(self):
        n = len(self.table)
        order = torch.randperm(n) if self.shuffle else torch.arange(n)
        for sel in order.split(self.batch):
            yield self.table[sel].to(DTYPE)


class MF(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.user_bias = nn.Embedding(USERS, 1)
        self.item_bias = nn.Embedding(ITEMS, 1)
        self.mix = nn.Linear(DIM, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.1)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, rows):
        u, i = rows[:, 0].long(), rows[:, 1].long().clamp(max=ITEMS - 1)
        inter = self.mix(self.user(u) * self.item(i)).squeeze(-1)
        return 3 + inter + self.user_bias(u).squeeze(-1) + self.item_bias(i).squeeze(-1)


def evaluate(model, data):
    se, n = 0.0, 0
    with torch.no_grad():
        for rows in data:
            err = model(rows).float() - rows[:, 2].float()
            se += err.square().sum().item()
            n += len(rows)
    return (se / n) ** 0.5


def run():
    torch.manual_seed(0)
    table = simulate()
    train = Interactions(table[:100_000], 1024, True)
    valid = Interactions(table[100_000:], 4096, False)
    model = MF()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in range(7):
        total = 0.0
        for k, rows in enumerate(train):
            with torch.autocast("cpu", dtype=DTYPE):
                pred = model(rows)
            loss = (pred.float() - rows[:, 2].float()).square().mean()
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch} train_mse {total / (k + 1):.4f}")
    print(f"val_rmse {evaluate(model, valid):.4f}")


run()
