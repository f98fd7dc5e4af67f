"""2-D toy diffusion (DDPM epsilon prediction) with an averaged copy for sampling/eval."""
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(123)
T = 100
betas = torch.linspace(1e-4, 0.05, T)
abar = torch.cumprod(1 - betas, 0)


def data(n):
    k = torch.randint(0, 8, (n,))
    a = 2 * math.pi * k / 8
    return torch.stack([a.cos(), a.sin()], 1) * 1.5 + 0.05 * torch.randn(n, 2)


class Denoiser(nn.Module):
    def __init__(self, h=128):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, 4, 8)))
        self.net = nn.Sequential(
            nn.Linear(2 + 16, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(),
            nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 2),
        )

    def forward(self, x, t):
        a = (t.float() / T)[:, None] * self.freq
        return self.net(torch.cat([x, a.sin(), a.cos()], 1).to(self.net[0].weight.dtype))


class ModelEma:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model).eval().to(torch.bfloat16)
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.mul_(self.decay).add_(p.detach().to(e.dtype), alpha=1 - self.decay)


def diffusion_loss(model, x0, gen=None):
    t = torch.randint(0, T, (x0.size(0),), generator=gen)
    eps = torch.randn(x0.shape, generator=gen)
    xt = abar[t].sqrt()[:, None] * x0 + (1 - abar[t]).sqrt()[:, None] * eps
    return F.mse_loss(model(xt, t).float(), eps)


@torch.no_grad()
def evaluate(model):
    gen = torch.Generator().manual_seed(5)
    return diffusion_loss(model, val_x, gen).item()


val_x = data(4000)
model = Denoiser()
ema = ModelEma(model, decay=0.997)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
n_steps = 1600
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, n_steps)

for step in range(1, n_steps + 1):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = diffusion_loss(model, data(128))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    ema.update(model)
    if step % 200 == 0:
        print(f"step {step} loss {loss.item():.4f}")

print(f"val_loss {evaluate(ema.module):.4f}")
