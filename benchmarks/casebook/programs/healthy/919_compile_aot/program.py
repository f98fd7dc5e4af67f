import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 2))
fast = torch.compile(net, backend="aot_eager")
opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(50):
    x = torch.randn(64, 8)
    y = (x[:, 0] > x[:, 1]).long()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(fast(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 5 == 0:
        print(f"step {step} loss {loss.item():.4f}")
