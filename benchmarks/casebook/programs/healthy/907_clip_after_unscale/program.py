import torch
from torch import nn

torch.manual_seed(0)
K = 4
net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 60)
scaler = torch.amp.GradScaler("cpu")
for i in range(1, 241):
    x = torch.randn(32, 16)
    y = x[:, :1] * x[:, 1:2] + x[:, 2:3]
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x), y) / K
    scaler.scale(loss).backward()
    if i % K == 0:
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        if scaler.get_scale() >= before:
            sched.step()
    if i % 20 == 0:
        print(f"micro {i} loss {loss.item() * K:.4f}")
