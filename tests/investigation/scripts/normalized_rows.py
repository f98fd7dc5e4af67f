"""Rows are normalized after each step; one is 0 at step 4, and only a later step uses it."""

import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(16, 8)
out = nn.Linear(8, 1)
optimizer = torch.optim.SGD([*table.parameters(), *out.parameters()], lr=1e-3)

for step in range(20):
    tokens = torch.full((4,), 15 if step == 11 else step % 8)
    loss = out(table(tokens)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        if step == 4:
            table.weight[15] = 0
        table.weight /= table.weight.norm(dim=1, keepdim=True)  # culprit
