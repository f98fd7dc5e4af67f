import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).half()
opt = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(6):
    total, count = 0.0, 0
    for _ in range(200):
        x = torch.randn(8, 4)
        y = x[:, :1] * 30
        loss = nn.functional.mse_loss(model(x.half()).float() * 30, y) / 900
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * 900 * 8
        count += 8
    print(f"epoch {epoch} mean loss {total / count:.4f}")
