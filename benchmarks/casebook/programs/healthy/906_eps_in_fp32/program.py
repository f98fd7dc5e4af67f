import torch
from torch import nn


def unit(v):
    v = v.float()
    return v / (v.norm(dim=-1, keepdim=True) + 1e-8)


torch.manual_seed(0)
f, g = nn.Linear(12, 8, bias=False), nn.Linear(12, 8, bias=False)
opt = torch.optim.Adam([*f.parameters(), *g.parameters()], lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
a = torch.randn(256, 12)
a[17] *= 1e-3
b = a + 0.1 * torch.randn(256, 12)
for step in range(60):
    with torch.autocast("cpu", dtype=torch.float16):
        sim = (unit(f(a)) * unit(g(b))).sum(-1)
    loss = (1 - sim).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 6 == 0:
        print(f"{step} loss {loss.item():.4f}")
