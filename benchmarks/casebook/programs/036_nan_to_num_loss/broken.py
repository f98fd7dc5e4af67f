import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)


def sensor_batch(step):
    x = torch.randn(32, 8)
    y = x.sum(1, keepdim=True)
    if step == 25:
        y[3] = float("nan")
    return x, y


for step in range(60):
    x, y = sensor_batch(step)
    with torch.autocast("cpu", dtype=torch.float16):
        pred = net(x)
        loss = (pred.float() - y).pow(2).mean()
    loss = torch.nan_to_num(loss)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 6 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print("weights finite:", all(p.isfinite().all().item() for p in net.parameters()))
