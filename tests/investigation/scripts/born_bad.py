"""A parameter that nothing uses holds NaN from the start; the bad number is another one."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Parameter(torch.full((3,), float("nan")))

    def forward(self, x):
        return self.layer(x)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(10):
    x = torch.rand(8, 4)
    y = net(x)
    loss = (y / (y * (step != 6))).square().mean()  # culprit
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
