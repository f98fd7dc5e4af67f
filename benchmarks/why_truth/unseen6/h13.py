"""Functional training loop: bf16 working weights, update applied to a full-precision copy."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value

torch.manual_seed(23)
WORK = torch.bfloat16


def field(n):
    x = torch.rand(n, 2) * 2 - 1
    return x, torch.sin(4 * x[:, :1]) * torch.cos(3 * x[:, 1:]) + 0.3 * x[:, :1]


net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
master = {k: v.detach().clone() for k, v in net.named_parameters()}


def objective(params, x, y):
    pred = functional_call(net, params, (x.to(WORK),))
    return F.mse_loss(pred.float(), y)


step_fn = grad_and_value(objective)
m = {k: torch.zeros_like(v) for k, v in master.items()}
s = {k: torch.zeros_like(v) for k, v in master.items()}
x, y = field(4000)
STEPS = 1800
for t in range(1, STEPS + 1):
    idx = torch.randint(0, len(x), (128,))
    work = {k: v.to(WORK) for k, v in master.items()}
    grads, loss = step_fn(work, x[idx], y[idx])
    lr = 4e-3 * (1 - t / (STEPS + 1))
    for k, g in grads.items():
        g = g.float()
        m[k].lerp_(g, 0.1)
        s[k].lerp_(g * g, 0.001)
        mh, sh = m[k] / (1 - 0.9 ** t), s[k] / (1 - 0.999 ** t)
        master[k] -= lr * mh / (sh.sqrt() + 1e-8)
    if t % 200 == 0:
        print(f"step {t} loss {loss.item():.5f}")

vx, vy = field(2000)
with torch.no_grad():
    pred = functional_call(net, master, (vx,))
print(f"val_mae {(pred - vy).abs().mean().item():.4f}")
