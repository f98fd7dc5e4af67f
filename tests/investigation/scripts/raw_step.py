"""The optimizer steps on gradients that are still multiplied by the loss scale, and had overflowed."""

import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for i in range(20):
    x = torch.randn(8, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (net(x) - x.sum(-1, keepdim=True)).square().mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    opt.step()
