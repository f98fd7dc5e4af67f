"""A model under torch.compile, with a backend that needs no C++ compiler."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        h = self.layer(x)
        return torch.log(h.square().sum(-1))  # culprit


net = Net()
compiled = torch.compile(net, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(4, 8)
    if step == 4:
        with torch.no_grad():
            net.layer.bias.zero_()
        x = x * 0
    loss = compiled(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
