import torch
from torch import nn

torch.manual_seed(3)
net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(100):
    x = torch.randn(16, 5, 6)
    keep = torch.rand(16, 5) > 0.6
    with torch.autocast("cpu", dtype=torch.float16):
        err = (net(x).squeeze(-1) - x.mean(-1)).abs()
        per_row = (err * keep).sum(1) / keep.sum(1).clamp(min=1)
        loss = per_row.mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
