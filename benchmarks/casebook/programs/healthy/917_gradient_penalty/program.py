import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 32), nn.Softplus(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(80):
    x = torch.randn(64, 5)
    y = x.abs().sum(1, keepdim=True)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x), y)
    grads = torch.autograd.grad(scaler.scale(loss), net.parameters(), create_graph=True)
    grads = [g / scaler.get_scale() for g in grads]
    norm = sum(g.float().pow(2).sum() for g in grads).add(1e-12).sqrt()
    total = loss + 0.01 * norm
    opt.zero_grad()
    scaler.scale(total).backward()
    scaler.step(opt)
    scaler.update()
    if step % 8 == 0:
        print(f"step {step} loss {loss.item():.4f}")
