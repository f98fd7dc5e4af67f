"""Losses for the contrastive experiments."""
import torch
import torch.nn.functional as F


def l2_normalize(x, eps=1e-8):
    return x / (x.norm(dim=-1, keepdim=True) + eps)


def nt_xent(z1, z2, temperature=0.2):
    z = torch.cat([l2_normalize(z1), l2_normalize(z2)])
    sim = z @ z.t() / temperature
    n = z1.shape[0]
    eye = torch.eye(2 * n, dtype=torch.bool)
    sim = sim.masked_fill(eye, -1e4)
    target = torch.cat([torch.arange(n) + n, torch.arange(n)])
    return F.cross_entropy(sim, target)


def alignment(z1, z2):
    return (l2_normalize(z1) - l2_normalize(z2)).pow(2).sum(-1).mean()
