"""Keyword spotting on raw audio; a hand-written RMS norm after the first convolution."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)


class RMSNorm1d(nn.Module):
    def __init__(self, channels, eps=1e-8):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(dim=1, keepdim=True) + self.eps)
        return x * scale * self.weight


class Spotter(nn.Module):
    def __init__(self, n_classes=6):
        super().__init__()
        self.front = nn.Conv1d(1, 16, 25, stride=10, bias=False)
        self.norm = RMSNorm1d(16)
        self.body = nn.Conv1d(16, 24, 5, stride=2)
        self.head = nn.Linear(24, n_classes)

    def forward(self, wave):
        x = self.norm(self.front(wave))
        x = F.gelu(self.body(x)).mean(dim=-1)
        return self.head(x)


def make_data(n=360, length=800):
    t = torch.arange(length) / 8000
    labels = torch.arange(n) % 6
    freq = 200.0 * (labels + 1)
    waves = torch.sin(6.2832 * freq[:, None] * t) + 0.1 * torch.randn(n, length)
    waves[310] = 0.0  # microphone was muted
    return TensorDataset(waves[:, None], labels)


@torch.no_grad()
def update_ema(ema, model, decay=0.99):
    for a, b in zip(ema.parameters(), model.parameters()):
        a.mul_(decay).add_(b, alpha=1 - decay)


loader = DataLoader(make_data(), batch_size=12)
net = Spotter()
ema_net = copy.deepcopy(net)
optim = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
accum = 2

it = 0
for epoch in range(2):
    for i, (wave, label) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(wave), label) / accum
        scaler.scale(loss).backward()
        if (i + 1) % accum == 0:
            scaler.unscale_(optim)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optim)
            scaler.update()
            optim.zero_grad()
            update_ema(ema_net, net)
        it += 1
        print(it, loss.item() * accum, scaler.get_scale())
