import math
import torch
from torch import nn

torch.manual_seed(0)
best, patience = math.inf, 0
model = nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu")
x = torch.randn(200, 5)
y = x @ torch.ones(5, 1)
for epoch in range(60):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if loss.item() < best - 1e-4:
        best, patience = loss.item(), 0
        torch.save(model.state_dict(), "best.pt")
    else:
        patience += 1
    if patience > 5:
        break
    if epoch % 6 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")
