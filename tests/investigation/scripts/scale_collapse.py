"""Gradients that do not fit half at any loss scale: the scaler skips steps until its scale is below 1."""

import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for i in range(60):
    x = torch.randn(8, 16); y = torch.randn(8, 4)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
        if i > 10: out = out * 3000
        loss = nn.functional.mse_loss(out.float(), y) * (1 if i < 11 else 1000)  # culprit
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt); scaler.update()
