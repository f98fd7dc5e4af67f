import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)


def batch(n):
    y = torch.randint(0, 2, (n,))
    return torch.randn(n, 1, 8, 8) + y.view(-1, 1, 1, 1), y


for step in range(60):
    x, y = batch(32)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 6 == 0:
        print("train loss", round(loss.item(), 4))
net.eval()
with torch.no_grad():
    x, y = batch(200)
    print("val loss", nn.functional.cross_entropy(net(x), y).item())
