"""Activation checkpointing: the root of zero has an infinite gradient, in the backward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.sqrt(self.layer(x).square())  # culprit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


net = Net()
for block in net.blocks:
    nn.init.constant_(block.layer.bias, 8.0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    if step == 3:
        with torch.no_grad():
            net.blocks[1].layer.weight.zero_()
            net.blocks[1].layer.bias.zero_()
    loss = net(torch.randn(4, 8)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
