# DP-SGD with torch.func: per-sample gradients under bf16 autocast, per-sample clipping, gaussian noise on top.
# The noise is the product: the loss curve is supposed to be ragged.
import os
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

torch.manual_seed(31337)
BF = os.environ.get("FP32", "0") != "1"
CLIP, SIGMA, LOT, STEPS, LR = 1.0, 0.8, 256, 320, 0.35


def blobs(n, mu):
    y = torch.randint(0, mu.size(0), (n,))
    return mu[y] + torch.randn(n, mu.size(1)), y


mu = 1.05 * torch.randn(8, 16)
xtr, ytr = blobs(6000, mu)
xte, yte = blobs(3000, mu)

net = nn.Sequential(nn.Linear(16, 32), nn.GroupNorm(4, 32), nn.SELU(), nn.Linear(32, 8))
params = {k: v.detach().clone() for k, v in net.named_parameters()}       # fp32, no autograd history
mom = {k: torch.zeros_like(v) for k, v in params.items()}
avg = {k: v.clone() for k, v in params.items()}


def sample_loss(p, x, y):
    with torch.autocast("cpu", torch.bfloat16, enabled=BF):
        out = functional_call(net, p, (x.unsqueeze(0),))
    return F.cross_entropy(out.float(), y.unsqueeze(0))


per_sample = vmap(grad_and_value(sample_loss), in_dims=(None, 0, 0))

for step in range(STEPS):
    take = torch.rand(len(xtr)) < LOT / len(xtr)           # poisson sampling, size varies
    if not take.any():
        continue
    grads, losses = per_sample(params, xtr[take], ytr[take])
    sq = sum(g.float().flatten(1).square().sum(1) for g in grads.values())
    norms = sq.sqrt()
    factor = torch.where(norms > CLIP, CLIP / norms.clamp_min(1e-12), torch.ones_like(norms))
    lr = LR * (1 - step / STEPS) + 0.01
    for k, g in grads.items():
        s = torch.einsum("n,n...->...", factor, g.float())
        s.add_(torch.randn_like(s), alpha=SIGMA * CLIP).div_(LOT)
        mom[k].mul_(0.8).add_(s)
        params[k].sub_(mom[k], alpha=lr)
        avg[k].lerp_(params[k], 1.0 if step < 20 else 0.03)
    if step % 40 == 0:
        print(f"{step:4d} n={int(take.sum())} loss={losses.mean():.4f} clipped={(norms > CLIP).float().mean():.2f}")

with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=BF):
    acc = (functional_call(net, avg, (xte,)).argmax(1) == yte).float().mean().item()
print(f"private test accuracy={acc:.4f}")
