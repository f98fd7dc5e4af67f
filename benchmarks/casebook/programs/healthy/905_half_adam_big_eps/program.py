import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(512, 8)
Y = (X[:, :1] + X[:, 1:2]).tanh()
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(torch.float16)
opt = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-4)
for epoch in range(8):
    total = 0.0
    for i in range(0, 512, 64):
        loss = nn.functional.mse_loss(net(X[i : i + 64].half()).float(), Y[i : i + 64])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() / 8
    print(f"epoch {epoch} loss {total:.4f}")
