"""Person re-id style embedding with batch-hard triplet mining."""
import argparse
import numpy as np
import torch
import torch.nn as nn


class IdentityBank:
    def __init__(self, n_ids=40, dim=24, per_id=20, seed=0):
        rng = np.random.default_rng(seed)
        centers = rng.standard_normal((n_ids, dim))
        nuisance = rng.standard_normal((8, dim)) * 1.2
        self.x, self.pid = [], []
        for i in range(n_ids):
            cam = rng.integers(0, 8, per_id)
            self.x.append(centers[i] + nuisance[cam] + 0.35 * rng.standard_normal((per_id, dim)))
            self.pid += [i] * per_id
        self.x = torch.tensor(np.concatenate(self.x), dtype=torch.float32)
        self.pid = torch.tensor(self.pid)
        self.n_ids, self.per_id = n_ids, per_id
        self.rng = np.random.default_rng(seed + 1)

    def pk_batch(self, p=8, k=4):
        ids = self.rng.choice(self.n_ids - 10, p, replace=False)
        rows = np.concatenate([i * self.per_id + self.rng.choice(self.per_id, k, replace=False) for i in ids])
        rows = torch.from_numpy(rows)
        return self.x[rows], self.pid[rows]


class Embedder(nn.Module):
    def __init__(self, dim=24, width=64, out=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))

    def forward(self, x):
        return self.net(x)


def euclidean_dist(a, b):
    m, n = a.size(0), b.size(0)
    aa = a.pow(2).sum(dim=1, keepdim=True).expand(m, n)
    bb = b.pow(2).sum(dim=1, keepdim=True).expand(n, m).t()
    dist = aa + bb - 2 * (a @ b.t())
    return dist.clamp(min=1e-12).sqrt()


class BatchHardTriplet(nn.Module):
    def __init__(self, margin=0.5):
        super().__init__()
        self.rank = nn.MarginRankingLoss(margin=margin)

    def forward(self, emb, pid):
        dist = euclidean_dist(emb, emb)
        same = pid[:, None].eq(pid[None, :])
        hardest_pos = (dist * same).max(dim=1).values
        hardest_neg = (dist + 1e3 * same).min(dim=1).values
        return self.rank(hardest_neg, hardest_pos, torch.ones_like(hardest_neg))


@torch.no_grad()
def rank1(model, bank):
    sel = bank.pid >= bank.n_ids - 10
    e, pid = model(bank.x[sel]).float(), bank.pid[sel]
    d = torch.cdist(e, e)
    d.fill_diagonal_(float("inf"))
    return (pid[d.argmin(1)] == pid).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--margin", type=float, default=0.5)
    args = ap.parse_args()

    torch.manual_seed(1)
    bank = IdentityBank()
    model = Embedder()
    crit = BatchHardTriplet(args.margin)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    running = 0.0
    for step in range(1, args.steps + 1):
        x, pid = bank.pk_batch()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = crit(model(x), pid)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        running += loss.item()
        if step % 20 == 0:
            g = sum(p.grad.norm() ** 2 for p in model.parameters()).sqrt() / scaler.get_scale()
            print(f"step {step} loss {running / 20:.4f} grad {g:.4f} scale {scaler.get_scale():g}")
            running = 0.0
    print(f"final rank-1 {rank1(model, bank):.4f}")


if __name__ == "__main__":
    main()
