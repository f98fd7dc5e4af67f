"""Sensor imputation: most channels have holes (NaN). fp16 autocast.

NaNs live in the *data* and the *targets*, never in the graph: nan_to_num + a mask channel on the way in,
torch.where on the way out. Broken records raise and are skipped. Auxiliary loss weight is 1e-4."""
import logging
import math
import os

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("impute")
torch.manual_seed(2024)
HALF = os.environ.get("FP32", "0") != "1"
C = 16


class CorruptRecord(ValueError):
    pass


def make_records(n):
    basis = torch.randn(3, C)
    recs = []
    for i in range(n):
        row = torch.randn(3) @ basis + 0.1 * torch.randn(C)
        hidden = torch.rand(C) < 0.25
        if i % 97 == 0:
            row = row.fill_(float("nan"))       # station was offline
        recs.append((row, hidden))
    return recs


def parse(rec):
    row, hidden = rec
    if torch.isnan(row).all():
        raise CorruptRecord("offline")
    seen = torch.where(hidden, torch.full_like(row, float("nan")), row)
    want = torch.where(hidden, row, torch.full_like(row, float("nan")))
    return seen, want


def collate(recs):
    xs, ys, bad = [], [], 0
    for r in recs:
        try:
            s, w = parse(r)
        except CorruptRecord:
            bad += 1
            continue
        xs.append(s)
        ys.append(w)
    return torch.stack(xs), torch.stack(ys), bad


records = make_records(4400)
tx, ty, b1 = collate(records[:3600])
vx, vy, b2 = collate(records[3600:])
log.info(f"skipped {b1 + b2} offline records, {torch.isnan(tx).float().mean():.1%} of inputs missing")
mean = torch.nanmean(tx, 0)
std = torch.nanmean((tx - mean) ** 2, 0).sqrt()
tx, ty, vx, vy = [(t - mean) / std for t in (tx, ty, vx, vy)]


class Imputer(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2 * C, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU())
        self.fill = nn.Linear(64, C)
        self.energy = nn.Linear(64, 1)      # auxiliary: sum of squares of what is visible

    def forward(self, x):
        miss = torch.isnan(x)
        h = self.trunk(torch.cat([torch.nan_to_num(x, nan=0.0), miss.to(x.dtype)], -1))
        return self.fill(h), self.energy(h)


def masked_mse(pred, target):
    ok = ~torch.isnan(target)
    safe = torch.where(ok, target, torch.zeros_like(target))     # guard BEFORE the subtraction
    err = torch.where(ok, pred - safe, torch.zeros_like(pred))
    return err.square().sum() / ok.sum().clamp_min(1)


net = Imputer()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=2 ** 14, enabled=HALF)
EPOCHS, BS = 14, 100
total = EPOCHS * math.ceil(len(tx) / BS)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=total)
for ep in range(EPOCHS):
    for ix in torch.randperm(len(tx)).split(BS):
        with torch.autocast("cpu", dtype=torch.float16, enabled=HALF):
            fill, en = net(tx[ix])
        main = masked_mse(fill.float(), ty[ix])
        aux = (en.float().squeeze(1) - tx[ix].nan_to_num().square().sum(1)).square().mean()
        loss = main + 1e-4 * aux
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        old = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        if scaler.get_scale() >= old:
            sched.step()
    if ep % 3 == 0:
        log.info(f"ep {ep:2d} main {main.item():.4f} aux {aux.item():.2f} (weighted {1e-4 * aux.item():.5f})")

net.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=HALF):
    fill, _ = net(vx)
per_channel = torch.nanmean((fill.float() - vy).square(), 0).sqrt()
print(f"imputation RMSE (z units): {per_channel.mean().item():.4f}")
