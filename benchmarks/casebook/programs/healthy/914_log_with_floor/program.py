import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)).half()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(100):
    y = torch.randint(0, 4, (64,))
    x = torch.randn(64, 10).half()
    x[torch.arange(64), y] += 2
    p = net(x).softmax(-1).clamp(min=1e-4)
    loss = -p.log()[torch.arange(64), y].float().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print("step", step, "nll loss", round(loss.item(), 4))
