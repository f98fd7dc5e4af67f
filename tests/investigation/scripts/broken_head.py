"""Two heads: a step breaks the weights of one, in half, and only a later step uses it."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Linear(8, 8)
heads = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])
optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.01)

for step in range(20):
    head = heads[1] if step in (5, 14) else heads[0]
    x = torch.randn(16, 8)
    loss = head(body(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    factor = 1e7 if step == 5 else 1.0
    for parameter in heads[1].parameters():
        if parameter.grad is not None:
            parameter.grad = (parameter.grad.half() * factor).float() / factor  # culprit
    optimizer.step()
    print(step, loss.item())
