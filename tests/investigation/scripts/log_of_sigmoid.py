"""The logarithm of a sigmoid that is 0 in half; fails in FP32 as well."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def loss_of(logits, y):
    p = torch.sigmoid(logits)
    return -(y * torch.log(p)).mean()  # culprit


for step in range(6):
    x = torch.randn(8, 8)
    if step == 4:
        x = x * 3000
    with torch.autocast("cpu", dtype=torch.float16):
        logits = net(x)
    loss = loss_of(logits.half().squeeze(-1), torch.ones(8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
