"""A healthy script: missing targets are NaN, are masked in the loss, and are printed."""

import torch

torch.manual_seed(0)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)
y[::4] = torch.nan
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(12):
    with torch.autocast("cpu", dtype=torch.float16):
        known = ~torch.isnan(y)
        error = model(x).float() - torch.where(known, y, 0.0)
        loss = torch.where(known, error, 0.0).square().sum() / known.sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item(), y.mean().item())
