"""Intraday direction and volatility model on one-minute returns computed from raw mid prices."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ReturnFeatures(nn.Module):
    def __init__(self, scale=800.0):
        super().__init__()
        self.scale = scale

    def forward(self, mid):
        # work on the prices in half, like the rest of the pipeline
        ret = mid[..., 1:].half() / mid[..., :-1].half() - 1.0  # guilty
        ret = ret.float() * self.scale
        return torch.stack([ret, ret.abs()], dim=1)


class CausalBlock(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation)
        self.skip = nn.Conv1d(cin, cout, 1)

    def forward(self, x):
        y = self.conv(F.pad(x, (self.pad, 0)))
        return F.silu(y) + self.skip(x)


class MinuteNet(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.features = ReturnFeatures()
        self.blocks = nn.ModuleList([
            CausalBlock(2, channels, 1),
            CausalBlock(channels, channels, 2),
            CausalBlock(channels, channels, 4),
        ])
        self.head = nn.Linear(channels, 2)

    def forward(self, mid):
        x = self.features(mid)
        for block in self.blocks:
            x = block(x)
        mu, raw = self.head(x[..., -1]).float().unbind(-1)
        return mu, F.softplus(raw) + 0.1


def loss_fn(model, batch):
    mid, target = batch
    mu, sigma = model(mid)
    z = (target - mu) / sigma
    return (0.5 * z.pow(2) + sigma.log()).mean()


def make():
    torch.manual_seed(8)
    model = MinuteNet()
    steps = torch.randn(24, 64) * 6e-4
    mid = 140.0 * torch.exp(steps.cumsum(dim=1)) * (1 + 0.3 * torch.rand(24, 1))
    target = torch.randn(24)
    return model, loss_fn, (mid, target)
