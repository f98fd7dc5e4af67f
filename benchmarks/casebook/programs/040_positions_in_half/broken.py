import torch
from torch import nn


def rotary(x, start, n):
    half = x.shape[-1] // 2
    freq = torch.pi / 4 ** torch.arange(half).to(x.dtype)
    t = torch.arange(start, start + n).to(x.dtype)
    ang = t[:, None] * freq
    return torch.cat([ang.sin(), ang.cos()], -1)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for step in range(120):
    start = 6000 + int(torch.randint(0, 2000, (1,)))
    dummy = torch.zeros(64, 8, dtype=torch.float16)
    y = torch.arange(start, start + 64) % 2  # is it an even position?
    with torch.autocast("cpu", dtype=torch.float16):
        pe = rotary(dummy, start, 64)
        loss = nn.functional.cross_entropy(model(pe), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 12 == 11:
        print(f"step {step} loss {loss.item():.4f}")
