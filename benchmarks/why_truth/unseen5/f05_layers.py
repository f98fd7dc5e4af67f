"""Building blocks for the tabular regressor."""
import torch
from torch import nn


class NumericEmbedding(nn.Module):
    """Piecewise-periodic features followed by a per-feature projection."""

    def __init__(self, n_features, n_freq=4):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(n_freq) * 0.5)
        self.out_dim = n_features * (2 * n_freq + 1)

    def forward(self, x):
        z = x.unsqueeze(-1) * self.freq
        return torch.cat([x.unsqueeze(-1), z.sin(), z.cos()], -1).flatten(1)


class ResBlock(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm(x))))


class TabNet(nn.Module):
    def __init__(self, n_features, dim=64, depth=2):
        super().__init__()
        self.embed = NumericEmbedding(n_features)
        self.inp = nn.Linear(self.embed.out_dim, dim)
        self.blocks = nn.ModuleList(ResBlock(dim, 2 * dim) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.inp(self.embed(x))
        for b in self.blocks:
            h = b(h)
        return self.out(h).squeeze(-1)


def build_model(n_features, dtype=torch.bfloat16):
    return TabNet(n_features).to(dtype)


def build_optimizer(model, lr=6e-5):
    decay, rest = [], []
    for p in model.parameters():
        (decay if p.ndim > 1 else rest).append(p)
    groups = [{"params": decay, "weight_decay": 1e-3}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)
