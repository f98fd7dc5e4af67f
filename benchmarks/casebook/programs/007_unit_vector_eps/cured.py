import torch
import torch.nn as nn

torch.manual_seed(0)


def unit(v):
    return v / (v.norm(dim=-1, keepdim=True) + 1e-4)


class TwoTower(nn.Module):
    """users and items, dot product of unit vectors"""

    def __init__(self, feats=30, dim=16):
        super().__init__()
        self.user = nn.Sequential(nn.Linear(feats, 64), nn.ReLU(), nn.Linear(64, dim, bias=False))
        self.item = nn.Linear(feats, dim, bias=False)

    def forward(self, u, i):
        return (unit(self.user(u)) * unit(self.item(i))).sum(-1)


model = TwoTower()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")
history = torch.randn(512, 30)
catalog = torch.randn(512, 30)
catalog[100] = 0  # item without any attributes yet
liked = ((history * catalog).sum(-1) > 0).float() * 2 - 1

for epoch in range(6):
    total = 0.0
    perm = torch.randperm(512)
    for idx in perm.split(64):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            sim = model(history[idx], catalog[idx])
            loss = nn.functional.mse_loss(sim, liked[idx])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    print(f"epoch {epoch}: mean loss {total / 8:.4f}")
