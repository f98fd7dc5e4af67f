import torch
from torch import nn

torch.manual_seed(2)
net = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 2))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for step in range(200):
    x = torch.randn(32, 6)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], 1)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (net(x) - y.half()).abs().sum()  # 64 errors of about 1
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.3f}")
