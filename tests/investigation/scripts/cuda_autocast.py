"""A script for a GPU: on a CPU torch switches its autocast off, unless CUDA's rules are emulated."""

import torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for i in range(10):
    x = torch.randn(8, 16); y = torch.randn(8, 4)
    with torch.amp.autocast("cuda", dtype=torch.float16):
        out = net(x * (1 if i < 5 else 1e5))  # culprit
        loss = nn.functional.mse_loss(out, y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt); scaler.update()
