#!/usr/bin/env python
# VQ autoencoder: straight-through estimator, EMA codebook (kept fp32), dead code revival, fp16 autocast
import os
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(99)
fp16 = os.environ.get("FP32", "0") != "1"

K, DIM = 32, 4
N, IN = 6000, 24


def gen():
    centers = torch.randn(16, IN)
    z = torch.randint(0, 16, (N,))
    return centers[z] + 0.15 * torch.randn(N, IN)


class EMACodebook(nn.Module):
    def __init__(self, decay=0.95):
        super().__init__()
        self.decay = decay
        self.register_buffer("code", torch.randn(K, DIM))
        self.register_buffer("count", torch.ones(K))
        self.register_buffer("total", self.code.clone())
        self.started = False

    @torch.no_grad()
    def _update(self, z, idx):
        onehot = F.one_hot(idx, K).float()
        self.count.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(onehot.T @ z, alpha=1 - self.decay)
        n = self.count.sum()
        smoothed = (self.count + 1e-4) / (n + K * 1e-4) * n          # laplace smoothing
        self.code.copy_(self.total / smoothed.unsqueeze(1))
        dead = self.count < 0.5
        if dead.any():
            pick = z[torch.randint(0, len(z), (int(dead.sum()),))]
            self.code[dead] = pick
            self.total[dead] = pick
            self.count[dead] = 1.0

    def forward(self, z):
        with torch.autocast("cpu", enabled=False):
            z = z.float()
            if self.training and not self.started:
                self.code.copy_(z.detach()[torch.randperm(len(z))[:K]])
                self.total.copy_(self.code)
                self.started = True
            d = torch.cdist(z.detach(), self.code)
            idx = d.argmin(1)
            if self.training:
                self._update(z.detach(), idx)
            q = self.code[idx].clone()
            commit = F.mse_loss(z, q)
            return z + (q - z).detach(), commit, idx                  # straight through


class VQAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(IN, 64), nn.ReLU(), nn.Linear(64, DIM), nn.LayerNorm(DIM))
        self.vq = EMACodebook()
        self.dec = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, IN))

    def forward(self, x):
        q, c, idx = self.vq(self.enc(x))
        return self.dec(q), c, idx


data = gen()
tr, te = data[:5000], data[5000:]
net = VQAE()
opt = torch.optim.Adam(net.parameters(), 2e-3)
scaler = torch.amp.GradScaler("cpu", enabled=fp16)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tr), 200, shuffle=True, drop_last=True)

for ep in range(18):
    for g_ in opt.param_groups:
        g_["lr"] = 2e-3 * 0.9 ** ep
    for (x,) in loader:
        with torch.autocast("cpu", torch.float16, enabled=fp16):
            rec, commit, _ = net(x)
            loss = F.mse_loss(rec.float(), x) + 0.25 * commit
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    if ep % 3 == 0:
        print("epoch", ep, "loss %.4f" % loss.item(), "commit %.5f" % commit.item())

net.eval()
with torch.no_grad(), torch.autocast("cpu", torch.float16, enabled=fp16):
    rec, _, idx = net(te)
print("codes in use:", idx.unique().numel(), "of", K)
print("test explained variance: %.4f" % (1 - F.mse_loss(rec.float(), te) / te.var()).item())
