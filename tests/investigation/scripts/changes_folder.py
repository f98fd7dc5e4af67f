"""Logs into a folder of its own, to which it changes; the bad line is computed in half."""

import os

import torch
from torch import nn

torch.manual_seed(0)
os.makedirs("logs", exist_ok=True)
os.chdir("logs")
net = nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

for step in range(12):
    x = torch.randn(16, 8) * (3000 if step == 4 else 1)
    y = net(x).half()
    loss = (y * y).mean().float()  # culprit
    optimizer.zero_grad()
    (loss / (3000 if step == 4 else 1)).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    with open("log.txt", "a") as log:
        log.write(f"{step} {loss.item()}\n")
