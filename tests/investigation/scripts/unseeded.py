"""Random data without a seed; a rare sample is a row of zeros, which is divided by its norm."""

import random

import torch
from torch import nn

net = nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
order = list(range(40))
random.shuffle(order)
samples = torch.randn(40, 8)
samples[order[17]] = 0
for index in order:
    x = samples[index]
    x = x / x.norm()  # culprit
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
