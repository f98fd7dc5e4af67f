"""Denoising diffusion on 2-D points, fine-tuned at low noise levels; the sampler of x_t lives in half precision."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def linear_betas(steps=1000, start=1e-4, end=0.02):
    return torch.linspace(start, end, steps)


class Denoiser(nn.Module):
    def __init__(self, hidden=64, steps=1000):
        super().__init__()
        self.steps = steps
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, hidden))
        self.inp = nn.Linear(2, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 2)

    def forward(self, x, t):
        emb = self.time(t[:, None].float() / self.steps)
        h = F.silu(self.inp(x) + emb)
        h = h + F.silu(self.mid(h))
        return self.out(h)


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Denoiser()
        self.register_buffer("alpha_bar", torch.cumprod(1.0 - linear_betas(), dim=0))

    def q_sample(self, x0, t, noise):
        ab = self.alpha_bar[t][:, None]
        sigma = torch.sqrt(1.0 - ab.to(torch.float16))  # guilty
        return torch.sqrt(ab) * x0 + sigma * noise, sigma

    def forward(self, x0, t, noise):
        xt, sigma = self.q_sample(x0, t, noise)
        eps = self.net(xt * 4.0, t)
        # v-style residual in data space, so low-noise steps are not over-weighted
        return (sigma * (eps - noise)).float(), eps


def loss_fn(model, batch):
    res, eps = model(batch["x0"], batch["t"], batch["noise"])
    return 100.0 * res.pow(2).mean() + 1e-3 * eps.float().pow(2).mean()


def make():
    torch.manual_seed(59)
    model = Diffusion()
    B = 128
    angle = 6.2832 * torch.rand(B)
    x0 = torch.stack([angle.cos(), angle.sin()], dim=-1)
    batch = {"x0": x0, "t": torch.randint(0, 12, (B,)), "noise": torch.randn(B, 2)}
    return model, loss_fn, batch
