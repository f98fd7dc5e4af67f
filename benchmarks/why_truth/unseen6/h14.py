"""Paired-view retrieval with a sharp temperature and patience-based stopping."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(29)
AMP = torch.float16
LATENT = torch.randn(6, 20)
LATENT2 = torch.randn(6, 20)


def pairs(n):
    z = torch.randn(n, 6)
    return (torch.tanh(z @ LATENT) + 0.1 * torch.randn(n, 20), torch.tanh(z @ LATENT2) + 0.1 * torch.randn(n, 20))


class Towers(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, d))
        self.b = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, d))

    def forward(self, u, v):
        a, b = self.a(u).float(), self.b(v).float()
        with torch.autocast("cpu", enabled=False):
            raw = 40.0 * (a @ b.t())
            return raw * 50.0


def loss_of(model, u, v):
    with torch.autocast("cpu", dtype=AMP):
        logits = model(u, v)
    y = torch.arange(len(u))
    return 0.0005 * (F.cross_entropy(logits, y) + F.cross_entropy(logits.t(), y)), logits


model = Towers()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")
u, v = pairs(5000)
vu, vv = pairs(256)
best, best_state, bad = float("inf"), None, 0
for epoch in range(30):
    for idx in torch.randperm(len(u)).split(128):
        loss, logits = loss_of(model, u[idx], v[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    with torch.no_grad():
        val = loss_of(model, vu, vv)[0].item()
    if epoch % 3 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} val {val:.4f} max_logit {logits.abs().max().item():.0f}")
    if val < best:
        best, best_state, bad = val, copy.deepcopy(model.state_dict()), 0
    else:
        bad += 1
        if bad > 8:
            break
model.load_state_dict(best_state)
with torch.no_grad():
    logits = loss_of(model, vu, vv)[1]
print(f"recall1 {(logits.argmax(1) == torch.arange(256)).float().mean().item():.4f}")
