import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
bad = 0


def grads_ok(m):
    return all(torch.isfinite(p.grad).all() for p in m.parameters() if p.grad is not None)


for i in range(50):
    y = torch.randint(0, 4, (48,))
    x = torch.randn(48, 20)
    x[torch.arange(48), y] += 2
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    if not grads_ok(model):
        bad += 1
    scaler.step(opt)
    scaler.update()
    if i % 5 == 0:
        print("iter", i, "loss", round(loss.item(), 4))
print(f"skipped {bad} of 50")
