import torch
from torch import nn

torch.manual_seed(0)
regressor = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1))
optim = torch.optim.SGD(regressor.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu")
X = torch.randn(700, 7)
Y = X[:, :3].sum(1, keepdim=True)

for epoch in range(10):
    for k in range(0, 700, 70):
        with torch.autocast("cpu", dtype=torch.float16):
            out = regressor(X[k : k + 70])
            loss = nn.functional.mse_loss(out, Y[k : k + 70])
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()
    with torch.no_grad():
        full = nn.functional.mse_loss(regressor(X), Y)
    print(f"epoch={epoch} loss={full.item():.4f} scale={scaler.get_scale()}")
