"""Prototype/metric network, distances in a float32 island, fp16 elsewhere."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
C, D = 20, 32
centers = 1.2 * torch.randn(C, D)
warp = torch.randn(D, D) / D ** 0.5


def draw(n):
    y = torch.randint(0, C, (n,))
    x = centers[y] + torch.randn(n, D)
    return torch.sin(x @ warp) + 0.2 * x, y


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(D, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 24))
        self.proto = nn.Parameter(torch.randn(C, 24))

    def forward(self, x):
        return self.net(x)


def safe_dist(a, b, eps=1e-12):
    with torch.autocast("cpu", enabled=False):
        a, b = a.float(), b.float()
        d2 = (a[:, None] - b[None]).pow(2).sum(-1)
        return torch.sqrt(d2 + eps)


def objective(model, x, y):
    e = model(x)
    d = safe_dist(e, model.proto)
    ce = F.cross_entropy(-d, y)
    dd = safe_dist(e, e)
    same = y[:, None] == y[None]
    off = ~torch.eye(len(y), dtype=torch.bool)
    pull = (dd * (same & off)).sum() / (same & off).sum().clamp(min=1)
    var = e.float().var(0)
    spread = F.relu(1 - torch.sqrt(var + 1e-10)).mean()
    return ce + 0.05 * pull + 0.05 * spread + 0.01 * dd.diagonal().mean(), ce


model = Embed()
opt = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-15)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 13)
for it in range(300):
    x, y = draw(64)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss, ce = objective(model, x, y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if it % 30 == 0:
        print(f"it {it} loss {loss.item():.4f} ce {ce.item():.4f}")

x, y = draw(3000)
with torch.no_grad():
    print(f"val_loss {F.cross_entropy(-safe_dist(model(x), model.proto), y).item():.4f}")
