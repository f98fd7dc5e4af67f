"""A training script whose loss becomes NaN in FP16: the example of docs/how-to/my-loss-is-nan.md."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")

for step in range(200):
    x = torch.randn(64, 16) * (1 + step / 10)
    y = (x[:, :1] > 0).float()
    with torch.autocast("cpu", dtype=torch.float16):
        p = torch.sigmoid(model(x))
        loss = -(y * torch.log(p + 1e-8) + (1 - y) * torch.log(1 - p + 1e-8)).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, loss.item())
