import torch
from torch import nn

torch.manual_seed(0)
# gradients are in the thousands: the targets are not normalised
X = torch.randn(1024, 8) * 10
coef = torch.tensor([[3.0, -2.0, 5.0, 1.0, -4.0, 2.0, 0.5, -1.0]]).t()
Y = X @ coef
net = nn.Linear(8, 1, bias=False)
nn.init.zeros_(net.weight)
opt = torch.optim.RMSprop(net.parameters(), lr=0.02, alpha=0.9, eps=1e-3)
var = Y.var()

for epoch in range(12):
    for i in range(0, 1024, 64):
        xb, yb = X[i : i + 64], Y[i : i + 64]
        with torch.autocast("cpu", dtype=torch.float16):
            pred = net(xb)
        err = pred.float() - yb
        loss = err.pow(2).mean() * 4
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} relative loss: {(loss / var / 4).item():.4f}")
