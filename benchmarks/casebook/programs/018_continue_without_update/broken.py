import math
import torch
import torch.nn as nn

torch.manual_seed(4)
data = torch.randn(800, 30)
coef = torch.randn(30, 1) / 5
target = data @ coef

mlp = nn.Sequential(nn.Linear(30, 64), nn.SiLU(), nn.Linear(64, 1))
opt = torch.optim.RMSprop(mlp.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
skipped = 0

for epoch in range(3):
    for start in range(0, 800, 40):
        xb, yb = data[start : start + 40], target[start : start + 40]
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(mlp(xb), yb)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        gnorm = nn.utils.clip_grad_norm_(mlp.parameters(), 5.0)
        if not math.isfinite(gnorm):
            skipped += 1
            continue
        scaler.step(opt)
        scaler.update()
    print(f"epoch {epoch} | loss {loss.item():.4f} | skipped {skipped}")
