import torch
import torch.nn as nn


class TemporalNorm(nn.Module):
    """Normalise every channel over time (one window at a time), with learned scale and shift."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(1, channels, 1))
        self.bias = nn.Parameter(torch.zeros(1, channels, 1))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = (x * x).mean(dim=-1, keepdim=True) - mean * mean
        std = torch.sqrt(var + self.eps)
        return (x - mean) / std * self.weight + self.bias


class ResConv(nn.Module):
    def __init__(self, channels, kernel=5, dilation=1):
        super().__init__()
        pad = dilation * (kernel - 1) // 2
        self.conv = nn.Conv1d(channels, channels, kernel, padding=pad, dilation=dilation)
        self.norm = TemporalNorm(channels)
        self.act = nn.GELU()

    def forward(self, x):
        return x + self.act(self.norm(self.conv(x)))
