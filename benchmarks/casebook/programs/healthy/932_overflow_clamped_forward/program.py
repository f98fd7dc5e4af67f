import torch
from torch import nn

torch.manual_seed(2)
net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(100):
    x = torch.randn(64, 5)
    y = x[:, 0] + torch.randn(64) * 0.3
    with torch.autocast("cpu", dtype=torch.float16):
        mu, logvar = net(x * 5).unbind(-1)
        inv = torch.exp(-logvar.clamp(-8, 8))
        loss = (inv * (mu.float() - y) ** 2 + logvar.float().clamp(-8, 8)).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(f"step {step} nll loss {loss.item() + 10:.4f}")
