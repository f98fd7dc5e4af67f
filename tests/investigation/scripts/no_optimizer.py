"""A loop that updates the weights itself, on data from beside its folder; two rows of a batch are equal."""

from pathlib import Path

import torch
from torch import nn

rows = torch.tensor([float(number) for number in Path("../data/rows.txt").read_text().split()])
rows = rows.view(-1, 4, 3)
torch.manual_seed(0)
model = nn.Linear(3, 3)
for batch in rows:
    model.zero_grad()
    out = model(batch)
    apart = (out[1:] - out[:-1]).pow(2).sum(1).sqrt()  # culprit
    loss = out.pow(2).mean() - 0.1 * apart.mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
