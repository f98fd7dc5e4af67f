import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 48), nn.Softplus(), nn.Linear(48, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
LAMBDA = 0.1

for step in range(200):
    inp = torch.randn(64, 4, requires_grad=True)
    target = (inp.detach()[:, :1] * 2).sin() + inp.detach()[:, 1:2]
    with torch.autocast("cpu", dtype=torch.float16):
        mse = nn.functional.mse_loss(net(inp), target)
        loss = mse
    grads = torch.autograd.grad(scaler.scale(loss), inp, create_graph=True)[0] / scaler.get_scale()
    penalty = grads.float().pow(2).sum(1).add(1e-8).sqrt().mean()
    total = loss + LAMBDA * penalty
    opt.zero_grad()
    scaler.scale(total).backward()
    scaler.step(opt)
    scaler.update()
    if step % 20 == 19:
        print(f"step {step} mse loss {mse.item():.4f} penalty {penalty.item():.4f}")
