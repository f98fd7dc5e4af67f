import torch
from torch import nn


def standardize(x):
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)  # culprit


torch.manual_seed(0)
readings = torch.randn(40, 16)
readings[21] = 4.0
data = standardize(readings)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    batch = data[4 * step : 4 * step + 4]
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
