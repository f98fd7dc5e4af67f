# bf16 weights + fp32 master copy, gradient accumulation where the last group is short
import os
import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(42); np.random.seed(42)
DT = torch.float32 if os.environ.get("FP32") == "1" else torch.bfloat16

# ---------------------------------------------------------------- data: two interleaved spirals, 3 arms
def spirals(n, arms=3):
    y = np.random.randint(0, arms, n)
    r = np.sqrt(np.random.rand(n)) * 2
    t = 2.2 * r + y * 2 * np.pi / arms + 0.12 * np.random.randn(n)
    x = np.stack([r * np.cos(t), r * np.sin(t)], 1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)

xtr, ytr = spirals(3010)
xte, yte = spirals(1500)

net = nn.Sequential(nn.Linear(2, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 3))

class MasterAdam:
    """Adam on fp32 masters; model weights are only a rounded view of them."""
    def __init__(self, params, **kw):
        self.live = [p for p in params if p.requires_grad]
        self.master = [p.detach().clone().float().requires_grad_(True) for p in self.live]
        self.acc = [torch.zeros_like(m) for m in self.master]
        self.opt = torch.optim.Adam(self.master, **kw)

    def collect(self, weight):
        # pull the 16 bit grads into the fp32 accumulator, drop them from the live weights
        for p, a in zip(self.live, self.acc):
            a.add_(p.grad.float(), alpha=weight)
            p.grad = None

    @torch.no_grad()
    def step(self):
        for m, a in zip(self.master, self.acc):
            m.grad = a.clone()
        norm = nn.utils.clip_grad_norm_(self.master, 5.0)
        self.opt.step()
        for p, m, a in zip(self.live, self.master, self.acc):
            p.copy_(m)
            a.zero_()
        return norm

opt = MasterAdam(net.parameters(), lr=3e-3, weight_decay=0.0)   # masters taken BEFORE the cast
net.to(DT)
MB, ACC, EPOCHS = 60, 4, 28
for epoch in range(EPOCHS):
    opt.opt.param_groups[0]["lr"] = 3e-3 * (0.5 + 0.5 * np.cos(np.pi * epoch / EPOCHS)) + 1e-5
    chunks = torch.randperm(len(xtr)).split(MB)                 # 51 chunks, the last one has 10 rows
    groups = [chunks[i:i + ACC] for i in range(0, len(chunks), ACC)]   # ... and the last group has 3
    running = 0.0
    for grp in groups:
        rows = sum(len(c) for c in grp)                         # true number of rows of this step
        for c in grp:
            logits = net(xtr[c].to(DT))
            loss = nn.functional.cross_entropy(logits.float(), ytr[c])
            loss.backward()
            opt.collect(len(c) / rows)
            running += loss.item() * len(c)
        gn = opt.step()
    if epoch % 5 == 0:
        print("epoch %3d   loss %.4f   gnorm %.3f" % (epoch, running / len(xtr), gn))

with torch.no_grad():
    acc = (net(xte.to(DT)).argmax(-1) == yte).double().mean()
print("test accuracy: %.4f" % acc)
