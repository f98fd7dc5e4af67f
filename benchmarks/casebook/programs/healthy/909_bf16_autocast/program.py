import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
opt = torch.optim.SGD(net.parameters(), lr=1e-8)
for step in range(80):
    x = torch.randn(64, 8) * 300
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(x)
        loss = ((out - x) ** 2).sum() / 64
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 8 == 0:
        print(f"step {step} loss {loss.item():.1f}")
