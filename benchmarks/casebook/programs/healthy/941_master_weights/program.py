import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 3)).half()
master = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
opt = torch.optim.AdamW(master, lr=3e-3)
SCALE = 128.0

for step in range(120):
    y = torch.randint(0, 3, (64,))
    x = torch.randn(64, 12)
    x[torch.arange(64), y] += 2
    loss = nn.functional.cross_entropy(model(x.half()).float(), y)
    model.zero_grad()
    (loss * SCALE).backward()
    for m, p in zip(master, model.parameters()):
        m.grad = p.grad.float() / SCALE
    opt.step()
    with torch.no_grad():
        for m, p in zip(master, model.parameters()):
            p.copy_(m)
    if step % 8 == 0:
        print(f"step {step} loss {loss.item():.4f}")
