"""Keyword spotting on log-mel frames: conv front end with statistics pooling (mean and standard deviation)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class StatsPool(nn.Module):
    """x-vector style pooling over time."""

    def __init__(self, eps=1e-2):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=-1)
        var = (x * x).mean(dim=-1) - x.mean(dim=-1) * x.mean(dim=-1)  # guilty
        std = torch.sqrt(var.clamp_min(0.0) + self.eps)
        return torch.cat([0.05 * mean, std], dim=-1)


class XVector(nn.Module):
    def __init__(self, n_mels=24, channels=32, classes=6):
        super().__init__()
        self.tdnn1 = nn.Conv1d(n_mels, channels, 5, padding=2)
        self.tdnn2 = nn.Conv1d(channels, channels, 3, dilation=2, padding=2)
        self.pool = StatsPool()
        self.fc1 = nn.Linear(2 * channels, 48)
        self.fc2 = nn.Linear(48, classes)
        with torch.no_grad():  # front end whose channels sit well above zero
            self.tdnn2.bias.add_(18.0)

    def forward(self, mel):
        h = F.relu(self.tdnn1(mel))
        h = self.tdnn2(h)
        stats = self.pool(h)
        return self.fc2(F.relu(self.fc1(stats)))


def loss_fn(model, batch):
    mel, label = batch
    return F.cross_entropy(model(mel), label, label_smoothing=0.05)


def make():
    torch.manual_seed(21)
    model = XVector()
    with torch.no_grad():
        model.tdnn2.weight.mul_(2.5)
    label = torch.randint(0, 6, (16,))
    mel = torch.randn(16, 24, 60) * (1.0 + 0.3 * label[:, None, None].float())
    return model, loss_fn, (mel, label)
