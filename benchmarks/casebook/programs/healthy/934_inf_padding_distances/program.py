import torch
from torch import nn

torch.manual_seed(1)
embed = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 3))
opt = torch.optim.Adam(embed.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for step in range(40):
    points = torch.randn(16, 10, 3)
    length = torch.randint(2, 11, (16, 1))
    pad = torch.arange(10)[None, :] >= length
    goal = points[:, :1] * 0.5
    with torch.autocast("cpu", dtype=torch.float16):
        moved = embed(points)
        far = (moved - goal).abs().sum(-1).masked_fill(pad, float("inf"))
        loss = far.amin(1).mean() + 0.1 * (moved - points * 0.5).abs().mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(f"{step} loss {loss.item():.4f}")
