"""Layers for the keyword model."""
import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        ms = x.pow(2).mean(dim=-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(ms + self.eps))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class KeywordNet(nn.Module):
    def __init__(self, bands, dim, classes):
        super().__init__()
        self.stem = nn.Linear(bands, dim)
        self.norm = RMSNorm(dim)
        self.mix = nn.Conv1d(dim, dim, 5, stride=2, padding=2)
        self.block = Block(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        h = self.norm(self.stem(x))
        h = torch.relu(self.mix(h.transpose(1, 2))).transpose(1, 2)
        h = self.block(h)
        return self.head(h.flatten(1).view(h.size(0), h.size(1), -1).amax(1))
