"""Adam without an eps makes NaN of every embedding row that the first batch does not use."""

import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(64, 8)
out = nn.Linear(8, 1)
optimizer = torch.optim.Adam([*table.parameters(), *out.parameters()], lr=1e-3, eps=0.0)

for step in range(30):
    low = 40 if step == 12 else 0
    tokens = torch.randint(low, low + 4, (16,)) if step else torch.arange(4).repeat(4)
    loss = out(table(tokens)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # culprit
    print(step, loss.item())
