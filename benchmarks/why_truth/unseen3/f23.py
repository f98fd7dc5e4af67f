"""Rating prediction (matrix factorisation with biases and side features)."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

N_USERS, N_ITEMS = 600, 6000


def ratings(n, seed):
    world = np.random.default_rng(0)
    ub = 0.4 * world.standard_normal(N_USERS)
    ib = 0.8 * world.standard_normal(N_ITEMS)
    rng = np.random.default_rng(seed)
    u = rng.integers(0, N_USERS, n)
    i = rng.integers(0, N_ITEMS, n)
    hour = rng.integers(0, 24, n)
    price = rng.uniform(0, 1, n)
    r = 3.5 + ub[u] + ib[i] - 0.3 * price + 0.15 * np.sin(hour / 24 * 6.28) + 0.2 * rng.standard_normal(n)
    return np.column_stack([u, i, hour, price, r]).astype(np.float32)


class RatingTable(Dataset):
    """one packed matrix, kept in the dtype of the model to avoid casts in the loop"""

    def __init__(self, table, dtype):
        self.table = torch.from_numpy(table).to(dtype)

    def __len__(self):
        return len(self.table)

    def __getitems__(self, idx):
        return self.table[torch.as_tensor(idx)]


def unpack(rows):
    user = rows[:, 0].long()
    item = rows[:, 1].long()
    hour = rows[:, 2] / 24 * 6.2832
    side = torch.stack([rows[:, 3], torch.sin(hour), torch.cos(hour)], dim=1)
    return user, item, side, rows[:, 4]


class BiasMF(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.u, self.i = nn.Embedding(N_USERS, d), nn.Embedding(N_ITEMS + 1, d)
        self.ub, self.ib = nn.Embedding(N_USERS, 1), nn.Embedding(N_ITEMS + 1, 1)
        self.side = nn.Linear(3, 1)
        for e in (self.u, self.i):
            nn.init.normal_(e.weight, std=0.02)
        for e in (self.ub, self.ib):
            nn.init.zeros_(e.weight)
        nn.init.constant_(self.side.bias, 3.5)

    def forward(self, user, item, side):
        dot = (self.u(user) * self.i(item)).sum(-1)
        return dot + self.ub(user).squeeze(-1) + self.ib(item).squeeze(-1) + self.side(side).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--lr", type=float, default=2e-2)
    ap.add_argument("--batch", type=int, default=512)
    args = ap.parse_args()
    torch.manual_seed(0)
    dtype = torch.float16
    coll = lambda rows: rows
    train = DataLoader(RatingTable(ratings(60000, 1), dtype), args.batch, shuffle=True, collate_fn=coll)
    test = DataLoader(RatingTable(ratings(8000, 2), dtype), 2000, collate_fn=coll)
    model = BiasMF()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def rmse():
        se = 0.0
        with torch.no_grad():
            for rows in test:
                user, item, side, r = unpack(rows)
                se += (model(user, item, side.float()).float() - r.float()).pow(2).sum().item()
        return (se / 8000) ** 0.5

    for epoch in range(args.epochs):
        tot = 0.0
        for rows in train:
            user, item, side, r = unpack(rows)
            with torch.autocast("cpu", dtype=dtype):
                pred = model(user, item, side)
                loss = nn.functional.mse_loss(pred, r)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            tot += loss.item()
        print(f"epoch {epoch} loss {tot / len(train):.4f} test rmse {rmse():.4f}")
    print(f"final test rmse {rmse():.4f}")


if __name__ == "__main__":
    main()
