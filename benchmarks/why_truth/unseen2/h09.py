"""Siamese distances in FP16: many pairs are identical, roots and divisions are protected."""
import torch
import torch.nn as nn

torch.manual_seed(9)
STEPS, PAIRS, INPUT = 150, 32, 10
EPS = 1e-3


def pairs(n):
    a = torch.randn(n, INPUT)
    same = torch.rand(n) < 0.5
    b = torch.where(same[:, None], a, torch.randn(n, INPUT))
    return a, b, same.float()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(INPUT, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x):
        z = self.net(x)
        return z / (z.abs().amax(-1, keepdim=True) + EPS)


def distance(a, b):
    return torch.sqrt((a - b).pow(2).sum(-1) + EPS)


encoder = Encoder()
optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)

for step in range(STEPS):
    a, b, same = pairs(PAIRS)
    with torch.autocast("cpu", dtype=torch.float16):
        d = distance(encoder(a), encoder(b)).float()
        loss = (same * d + (1 - same) * torch.relu(2.0 - d)).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f} smallest distance {d.min().item():.4f}")
