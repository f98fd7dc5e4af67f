"""House-price style regression. fp16 + GradScaler on CPU.

The scaler starts at 2**24 on purpose: we let it walk down to wherever it wants to be,
a handful of skipped steps at the beginning costs nothing."""
import os
import copy
import torch
from torch import nn

torch.manual_seed(1234)
USE_HALF = os.environ.get("FP32") != "1"


class PatienceExhausted(Exception):
    """raised by the callback to leave two nested loops at once"""

    def __init__(self, epoch, best):
        super().__init__(f"no progress, epoch={epoch}, best={best:.4f}")
        self.epoch, self.best = epoch, best


class Stopper:
    def __init__(self, patience):
        self.patience, self.bad, self.best, self.state = patience, 0, float("inf"), None

    def __call__(self, epoch, value, model):
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
            if self.bad >= self.patience:
                raise PatienceExhausted(epoch, self.best)


def make_data(n):
    x = torch.randn(n, 12)
    price = 250_000 + 60_000 * x[:, 0] + 30_000 * torch.tanh(x[:, 1] * x[:, 2]) \
        + 20_000 * x[:, 3].abs() + 15_000 * torch.randn(n)
    return x, price.unsqueeze(1)


xtr, ytr = make_data(4000)
xva, yva = make_data(1000)
mu, sd = ytr.mean(), ytr.std()          # raw prices would never fit in fp16, z-score first
ytr, yva = (ytr - mu) / sd, (yva - mu) / sd

model = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=200, enabled=USE_HALF)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=400, gamma=0.6)
stop = Stopper(patience=6)


def validate():
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=USE_HALF):
        out = model(xva)
    model.train()
    return (out.float() - yva).square().mean().item()


skipped = 0
try:
    for epoch in range(40):
        perm = torch.randperm(len(xtr))
        for i in range(0, len(xtr), 128):
            sel = perm[i:i + 128]
            with torch.autocast("cpu", dtype=torch.float16, enabled=USE_HALF):
                pred = model(xtr[sel])
            loss = nn.functional.smooth_l1_loss(pred.float(), ytr[sel])
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            before = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            if scaler.get_scale() < before:
                skipped += 1            # overflow, optimizer did not move -> neither does the schedule
            else:
                sched.step()
        v = validate()
        if epoch % 5 == 0:
            print(f"epoch {epoch:02d} train {loss.item():.4f} val {v:.4f} scale {scaler.get_scale():g}")
        stop(epoch, v, model)
except PatienceExhausted as e:
    print("stopped early:", e)
finally:
    model.load_state_dict(stop.state)

print(f"steps skipped while the scale settled: {skipped}")
r2 = 1 - validate() / yva.var(unbiased=False).item()
print(f"final R2 {r2:.4f}")
