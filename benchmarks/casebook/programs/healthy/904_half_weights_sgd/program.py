import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)).half()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    y = torch.randint(0, 3, (64,))
    x = torch.randn(64, 10) + y[:, None]
    loss = nn.functional.cross_entropy(model(x.half()).float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(f"it {step} loss {loss.item():.4f}")
