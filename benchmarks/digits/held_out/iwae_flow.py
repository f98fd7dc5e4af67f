"""Importance-weighted training of a RealNVP posterior against a fixed target density (K samples per data point)."""
import math

import torch
import torch.nn as nn

PRECISION = "bfloat16"
D = 64


class Coupling(nn.Module):
    def __init__(self, dim, ctx, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(dim // 2 + ctx, 48), nn.ReLU(), nn.Linear(48, dim))
        nn.init.normal_(self.net[-1].weight, std=0.02)

    def forward(self, z, c):
        a, b = z.chunk(2, dim=-1)
        if self.flip:
            a, b = b, a
        s, t = self.net(torch.cat([a, c], dim=-1)).float().chunk(2, dim=-1)
        s = 0.3 * torch.tanh(s)
        b = b * torch.exp(s) + t
        z = torch.cat([b, a] if self.flip else [a, b], dim=-1)
        return z, s.sum(dim=-1)


class FlowPosterior(nn.Module):
    def __init__(self, dim=D, ctx=8, layers=3):
        super().__init__()
        self.layers = nn.ModuleList([Coupling(dim, ctx, i % 2 == 1) for i in range(layers)])

    def forward(self, eps, c):
        log_q = -0.5 * eps.pow(2).sum(-1) - 0.5 * D * math.log(2 * math.pi)
        z = eps
        for layer in self.layers:
            z, logdet = layer(z, c)
            log_q = log_q - logdet
        return z, log_q


def log_target(z, c):
    centre = 0.1 * torch.tanh(c).repeat(1, 1, D // c.shape[-1])
    return -0.5 * ((z - centre) / 1.05).pow(2).sum(-1) - D * math.log(1.05) - 0.5 * D * math.log(2 * math.pi)


def loss_fn(model, batch):
    eps, ctx = batch["eps"], batch["ctx"]
    c = ctx[:, None, :].expand(-1, eps.shape[1], -1)
    z, log_q = model(eps, c)
    log_p = log_target(z, c)
    log_w = log_p.to(torch.bfloat16) - log_q.to(torch.bfloat16)  # guilty
    bound = torch.logsumexp(log_w.float(), dim=1) - math.log(eps.shape[1])
    return -bound.mean()


def make():
    torch.manual_seed(41)
    model = FlowPosterior()
    batch = {"eps": torch.randn(16, 8, D), "ctx": torch.randn(16, 8)}
    return model, loss_fn, batch
