"""One model, four runs: FP32, FP16 with torch's GradScaler, FP16 guarded, and FP16 healed by the guard."""

import logging

import torch
from torch import nn

import halfguard as hg

ROW = "{:<26}{:>16}{:>19}{:>12}{:>17}"


class LogEnergy(nn.Module):
    def forward(self, x):
        return (1 + x.square()).log()  # overflows in FP16 for loud samples, not in FP32


def make_batches(count, seed):
    x = 30 * torch.randn(count, 64, 8, generator=torch.Generator().manual_seed(seed))
    x[::4, :2] *= 30  # every fourth batch has two loud samples
    return list(zip(x, x.square().sum(-1, keepdim=True).log(), strict=True))


def loss_fn(model, batch):
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


def torch_step(model, optimizer, scaler, batch):
    with torch.autocast("cpu", torch.float16, enabled=scaler.is_enabled()):
        loss = loss_fn(model, batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def run(name, batches, scaler=None, config="default"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), LogEnergy(), nn.BatchNorm1d(32), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    guard = hg.Guard(model, optimizer, config)
    for batch in batches:
        torch_step(model, optimizer, scaler, batch) if scaler else guard.step(loss_fn, batch)
    learnt = optimizer.state[model[0].weight]["step"].item()
    loss = sum(loss_fn(model.eval(), batch).item() for batch in make_batches(64, seed=2)) / 64
    scale, repeated = (scaler or guard.scaler).get_scale(), guard.summary().retried
    print(ROW.format(name, f"{learnt:g}", repeated, f"{scale:g}", f"{loss:.3f}"))


logging.getLogger("halfguard").setLevel(logging.ERROR)  # otherwise it reports every retried step
torch.set_num_threads(1)
good = make_batches(800, seed=1)
batches = [*good[:400], (good[0][0] * torch.nan, good[0][1]), *good[400:]]
retry = {"skip": {"on_nonfinite": "retry_fp32"}}
print(ROW.format("", "batches learnt", "repeated in FP32", "loss scale", "validation loss"))
run("FP32 without the bad batch", good, torch.amp.GradScaler("cpu", enabled=False))
run("FP16, torch.amp", batches, torch.amp.GradScaler("cpu"))
run("FP16, halfguard", batches, config=retry)
run("FP16, halfguard, healed", batches, config={**retry, "heal": {}})
