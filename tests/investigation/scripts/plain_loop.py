"""A plain loop: the exponential of a layer's output leaves the range of FP16 at step 7."""

import torch
from torch import nn

torch.manual_seed(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.last = nn.Linear(32, 4)

    def forward(self, x):
        h = self.first(x)
        h = h.exp()  # culprit
        return self.last(h / h.sum(-1, keepdim=True))


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(12):
    x = torch.randn(8, 16) * (1 if step < 7 else 20)
    y = torch.randint(0, 4, (8,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
