"""GAN on a ring of points: two optimizers, one scaler, FP16."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
STEPS, BATCH, NOISE = 150, 32, 4


def ring(n):
    angle = 2 * math.pi * torch.rand(n)
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(n, 2)


generator = nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.Adam(generator.parameters(), lr=5e-3, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(critic.parameters(), lr=5e-3, betas=(0.5, 0.9))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def bce(score, value):
    return F.binary_cross_entropy_with_logits(score.float(), torch.full_like(score, value, dtype=torch.float32))


for step in range(STEPS):
    real = ring(BATCH)
    noise = torch.randn(BATCH, NOISE)
    with torch.autocast("cpu", dtype=torch.float16):
        fake = generator(noise)
        loss_d = bce(critic(real), 0.9) + bce(critic(fake.detach()), 0.0)
    opt_d.zero_grad()
    scaler.scale(loss_d).backward()
    scaler.step(opt_d)

    with torch.autocast("cpu", dtype=torch.float16):
        loss_g = bce(critic(fake), 1.0)
    opt_g.zero_grad()
    scaler.scale(loss_g).backward()
    scaler.step(opt_g)
    scaler.update()

    if step % 15 == 0 or step == STEPS - 1:
        radius = fake.detach().float().norm(dim=1).mean().item()
        print(f"step {step:3d} critic {loss_d.item():.4f} generator {loss_g.item():.4f} mean radius {radius:.3f}")
