import torch
from torch import nn

torch.manual_seed(0)
# columns as they come: counts up to some thousands
net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)).half()
net[0].float()
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def batch(n=64):
    x = torch.randn(n, 6) * 800
    return x.half(), (x[:, 0] > x[:, 1]).long()


net.train()
for step in range(150):
    x, y = batch()
    loss = nn.functional.cross_entropy(net(x).float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 15 == 0:
        print(f"step {step} train loss {loss.item():.4f}")

net.eval()
with torch.no_grad():
    x, y = batch(512)
    out = net(x).float()
    print(f"eval loss {nn.functional.cross_entropy(out, y).item():.4f}")
