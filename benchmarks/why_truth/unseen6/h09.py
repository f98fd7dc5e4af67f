"""Digits MLP with a very large starting loss scale and a OneCycle schedule."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(0)
DTYPE = torch.float16
d = load_digits()
x = torch.tensor(d.data, dtype=torch.float32) / 16
y = torch.tensor(d.target)
perm = torch.randperm(len(x))
x, y = x[perm], y[perm]

net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
steps = 500
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=steps)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=40)

for step in range(steps):
    idx = torch.randint(0, 1400, (64,))
    with torch.autocast("cpu", dtype=DTYPE):
        logits = net(x[idx])
    loss = F.cross_entropy(logits.float(), y[idx])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(net.parameters(), 2.0)
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    if scaler.get_scale() >= before:
        sched.step()
    if step < 12 or step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f} scale {scaler.get_scale():g}")

net.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=DTYPE):
    acc = (net(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
print(f"val_acc {acc:.4f}")
