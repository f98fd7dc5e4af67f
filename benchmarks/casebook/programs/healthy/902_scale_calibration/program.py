import torch
from torch import nn

torch.manual_seed(1)
x = torch.randn(256, 12)
y = x[:, :3].sum(1, keepdim=True)
net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
for step in range(120):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
