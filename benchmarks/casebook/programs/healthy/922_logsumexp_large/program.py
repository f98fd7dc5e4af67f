import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(12, 6).half()
opt = torch.optim.SGD(net.parameters(), lr=0.02)
for step in range(100):
    y = torch.randint(0, 6, (64,))
    x = torch.randn(64, 12).half()
    x[torch.arange(64), y] += 2
    logits = net(x) * 30
    loss = (logits.logsumexp(-1) - logits[torch.arange(64), y]).float().mean() / 30
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print("step", step, "loss", round(loss.item(), 4))
