import copy

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 1))
shadow = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
test = torch.randn(512, 8)
for step in range(400):
    x = torch.randn(64, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x), x[:, :2].prod(1, keepdim=True))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    decay = min(0.999, (1 + step) / (10 + step))
    with torch.no_grad():
        for s, p in zip(shadow.parameters(), net.parameters()):
            s.lerp_(p, 1 - decay)
        if step % 25 == 24:
            err = nn.functional.mse_loss(shadow(test), test[:, :2].prod(1, keepdim=True))
            print(f"step {step + 1} average loss {err.item():.4f}")
