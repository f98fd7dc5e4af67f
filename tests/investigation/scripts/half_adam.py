import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 2)).half()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-3)
for step in range(30):
    x = torch.randn(32, 10).half()
    loss = nn.functional.cross_entropy(model(x).float(), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
