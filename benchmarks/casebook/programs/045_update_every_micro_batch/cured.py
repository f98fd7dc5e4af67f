import torch
import torch.nn as nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
accum_iter = 2

for data_iter_step in range(120):
    y = torch.randint(0, 2, (32,))
    x = torch.randn(32, 14) + y[:, None]
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
    scaler.scale(loss / accum_iter).backward()
    if (data_iter_step + 1) % accum_iter == 0:
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    if data_iter_step % 12 == 0:
        print(f"[{data_iter_step}] loss {loss.item():.4f}")
