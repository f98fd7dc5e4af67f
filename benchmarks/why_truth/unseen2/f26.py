"""Wasserstein critic on two-dimensional blobs with a gradient penalty, in FP16."""
import torch
import torch.nn as nn

torch.manual_seed(17)
STEPS = 120
BATCH = 32
PENALTY = 10.0


def real_points(n):
    centre = torch.tensor([[1.5, 0.0], [-1.5, 0.0], [0.0, 1.5]])
    return centre[torch.randint(0, 3, (n,))] + 0.1 * torch.randn(n, 2)


def fake_points(n):
    return torch.randn(n, 2)


class Critic(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def gradient_penalty(critic, real, fake, scaler):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    with torch.autocast("cpu", dtype=torch.float16):
        score = critic(between)
    (grad,) = torch.autograd.grad(scaler.scale(score.sum()), between, create_graph=True)
    norm = torch.sqrt(grad.float().pow(2).sum(1) + 1e-6)
    return ((norm - 1) ** 2).mean()


critic = Critic()
optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=50)

for step in range(STEPS):
    real, fake = real_points(BATCH), fake_points(BATCH)
    with torch.autocast("cpu", dtype=torch.float16):
        distance = critic(real).float().mean() - critic(fake).float().mean()
    penalty = gradient_penalty(critic, real, fake, scaler)
    loss = -distance + PENALTY * penalty
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == STEPS - 1:
        print(
            f"step {step:3d} loss {loss.item():.4f} distance {distance.item():.4f} "
            f"penalty {penalty.item():.4f} scale {scaler.get_scale():g}"
        )
