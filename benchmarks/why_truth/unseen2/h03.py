"""Face-style classifier: cosine logits times a large factor, with a margin on the true class."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=150)
ap.add_argument("--factor", type=float, default=64.0)
ap.add_argument("--margin", type=float, default=0.2)
args = ap.parse_args()

torch.manual_seed(3)
PEOPLE, INPUT = 10, 24
faces = torch.randn(PEOPLE, INPUT)


def batch(n):
    y = torch.randint(0, PEOPLE, (n,))
    return faces[y] + 0.4 * torch.randn(n, INPUT), y


class CosineHead(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(PEOPLE, dim))

    def forward(self, z, y):
        z = F.normalize(z.float(), dim=-1)
        w = F.normalize(self.weight.float(), dim=-1)
        with torch.autocast("cpu", enabled=False):
            cosine = z @ w.T
        margin = args.margin * F.one_hot(y, PEOPLE)
        return args.factor * (cosine - margin)


backbone = nn.Sequential(nn.Linear(INPUT, 48), nn.ReLU(), nn.Linear(48, 24))
head = CosineHead(24)
params = list(backbone.parameters()) + list(head.parameters())
optimizer = torch.optim.Adam(params, lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

for step in range(args.steps):
    x, y = batch(32)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = head(backbone(x), y)
        loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(params, 20.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == args.steps - 1:
        print(f"step {step:3d} loss {loss.item():.4f} largest logit {logits.abs().max().item():.1f} norm {norm.item():.2f}")
