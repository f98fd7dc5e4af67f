import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(600, 7)
Y = X.sum(1)
Y[torch.rand(600) < 0.3] = float("nan")
net = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(10):
    for i in range(0, 600, 60):
        xb, yb = X[i : i + 60], Y[i : i + 60]
        known = ~torch.isnan(yb)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(xb[known]).squeeze(1), yb[known])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print(f"epoch {epoch} loss {loss.item():.4f}")
