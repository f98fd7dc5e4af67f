import torch
from torch import nn

torch.manual_seed(3)
x = torch.randn(400, 6)
y = x.sin().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
for epoch in range(60):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    old = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= old:
        schedule.step()
    if epoch % 5 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")
