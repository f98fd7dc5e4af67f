"""Half-precision network with fp32 master weights and a static loss scale."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(16)
LOSS_SCALE = 256.0


def moons(n):
    t = torch.rand(n) * 3.1416
    y = torch.randint(0, 2, (n,))
    x = torch.stack([torch.cos(t) * (1 - 2 * y) + y, torch.sin(t) * (1 - 2 * y) + 0.4 * y], 1)
    return x + 0.12 * torch.randn(n, 2), y


class MasterOptimizer:
    """Keeps an fp32 copy of every half parameter and writes the rounded copy back."""

    def __init__(self, params, lr):
        self.params = list(params)
        self.master = [p.detach().clone().float().requires_grad_() for p in self.params]
        self.inner = torch.optim.Adam(self.master, lr=lr, eps=1e-8)
        self.skipped = 0

    def step(self, scale):
        grads = [p.grad.float() / scale for p in self.params]
        if not all(torch.isfinite(g).all() for g in grads):
            self.skipped += 1
            return
        for m, g in zip(self.master, grads):
            m.grad = g
        self.inner.step()
        with torch.no_grad():
            for p, m in zip(self.params, self.master):
                p.copy_(m)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


x, y = moons(3000)
xv, yv = moons(1000)
net = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2)).half()
opt = MasterOptimizer(net.parameters(), lr=3e-3)
for epoch in range(8):
    total = 0.0
    for idx in torch.randperm(len(x)).split(100):
        opt.zero_grad()
        loss = F.cross_entropy(net(x[idx].half()).float(), y[idx])
        (loss * LOSS_SCALE).backward()
        opt.step(LOSS_SCALE)
        total += loss.item()
    print(f"epoch {epoch} loss {total / 30:.4f} skipped {opt.skipped}")

with torch.no_grad():
    acc = (net(xv.half()).argmax(1) == yv).float().mean().item()
print(f"val_acc {acc:.4f}")
