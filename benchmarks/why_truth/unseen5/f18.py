"""Click prediction for an online shop: two-tower embeddings on an interaction log."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    users: int = 200
    items: int = 1500
    dim: int = 16
    rows: int = 60000
    batch: int = 1024
    epochs: int = 5
    lr: float = 1e-2
    amp_dtype: torch.dtype = torch.bfloat16


def build_log(cfg, gen):
    """Columns: user id, item id, hour of day (0..1), discount (0..1), clicked."""
    taste = torch.randn(cfg.users, 4, generator=gen)
    style = torch.randn(cfg.items, 4, generator=gen)
    popular = 1.5 * torch.randn(cfg.items, generator=gen)
    u = torch.randint(cfg.users, (cfg.rows,), generator=gen)
    i = torch.randint(cfg.items, (cfg.rows,), generator=gen)
    hour = torch.rand(cfg.rows, generator=gen)
    disc = torch.rand(cfg.rows, generator=gen)
    logit = 0.5 * (taste[u] * style[i]).sum(1) + 1.5 * popular[i] + disc - 0.5
    click = (torch.sigmoid(2 * logit) > torch.rand(cfg.rows, generator=gen)).float()
    return torch.stack([u.float(), i.float(), hour, disc, click], dim=1)


class TwoTower(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.users, cfg.dim)
        self.item = nn.Embedding(cfg.items, cfg.dim)
        self.item_bias = nn.Embedding(cfg.items, 1)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)
        nn.init.zeros_(self.item_bias.weight)
        self.ctx = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, feats):
        uid, iid = feats[:, 0].long(), feats[:, 1].long()
        dot = (self.user(uid) * self.item(iid)).sum(1)
        return dot + self.item_bias(iid).squeeze(1) + self.ctx(feats[:, 2:4]).squeeze(1)


def auc(score, label):
    order = score.argsort()
    rank = torch.empty_like(score)
    rank[order] = torch.arange(1, len(score) + 1, dtype=score.dtype)
    pos = label.sum()
    return ((rank[label > 0].sum() - pos * (pos + 1) / 2) / (pos * (len(label) - pos))).item()


def run(cfg):
    gen = torch.Generator().manual_seed(18)
    torch.manual_seed(18)
    log = build_log(cfg, gen)
    cut = int(0.9 * cfg.rows)
    loader = DataLoader(TensorDataset(log[:cut]), batch_size=cfg.batch, shuffle=True)
    model = TwoTower(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr, weight_decay=1e-5)

    def score(rows):
        rows = rows.to(cfg.amp_dtype)
        with torch.autocast("cpu", dtype=cfg.amp_dtype):
            return model(rows)

    for epoch in range(cfg.epochs):
        tot = 0.0
        for (rows,) in loader:
            loss = F.binary_cross_entropy_with_logits(score(rows).float(), rows[:, 4])
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item()
        print(f"epoch {epoch} bce {tot / len(loader):.4f}")
    with torch.no_grad():
        s = score(log[cut:]).float()
    return 2 * auc(s, log[cut:, 4]) - 1


if __name__ == "__main__":
    print(f"val_gini {run(Config()):.4f}")
