"""Networks over sound and other series: recurrent ones, and convolutions in time."""

# mypy: warn-return-any=False
from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


class LogSpectrum(nn.Module):
    """The logarithm of the power spectrum of 16-bit samples, with fixed convolutions."""

    real: Tensor
    imaginary: Tensor

    def __init__(self, window: int = 64, bins: int = 24) -> None:
        super().__init__()
        time = torch.arange(window) / window
        angle = 2 * math.pi * time * torch.arange(1, bins + 1)[:, None]
        shape = torch.hann_window(window) / window
        self.register_buffer("real", (angle.cos() * shape)[:, None])
        self.register_buffer("imaginary", (angle.sin() * shape)[:, None])

    def forward(self, wave: Tensor) -> Tensor:
        re = F.conv1d(wave[:, None], self.real, stride=32)
        im = F.conv1d(wave[:, None], self.imaginary, stride=32)
        power = re * re + im * im
        return torch.log(power + 1.0)


class Keywords(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.spectrum = LogSpectrum()
        self.conv, self.norm = nn.Conv1d(24, 32, 3, padding=1), nn.BatchNorm1d(32)
        self.head = nn.Linear(32, classes)

    def forward(self, wave: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(self.spectrum(wave))))
        logits: Tensor = self.head(h.mean(-1))
        return logits


def classify(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def tones(count: int, loudness: float) -> Batch:
    y = torch.randint(4, (count,))
    time = torch.arange(256) / 64
    phase = torch.rand(count, 1) * 6
    wave = torch.sin(2 * math.pi * (3 + 4 * y[:, None]) * time + phase)
    return loudness * (wave + 0.3 * torch.randn(count, 256)), y


def keywords_power_spectrum(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Keywords()
    batches = [tones(16, 400.0 if index % 4 else 6000.0) for index in range(50)]
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=1e-3), seed=seed
    )


class Denoiser(nn.Module):
    """Takes 16-bit samples and returns the voice without the noise."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 9, padding=4)
        self.middle = nn.Conv1d(width, width, 9, padding=4)
        self.last = nn.Conv1d(width, 1, 9, padding=4)

    def forward(self, wave: Tensor) -> Tensor:
        h = torch.relu(self.first(wave[:, None]))
        out: Tensor = self.last(torch.relu(self.middle(h))).squeeze(1)
        return out


def si_snr(model: nn.Module, batch: Batch) -> Tensor:
    noisy, clean = batch
    guess = model(noisy)
    clean = clean.to(guess.dtype)
    shared = (guess * clean).mean(-1, keepdim=True)
    target = shared / ((clean * clean).mean(-1, keepdim=True) + 1e-8) * clean
    noise = guess - target
    ratio = target.pow(2).sum(-1) / (noise.pow(2).sum(-1) + 1e-8)
    return -10 * torch.log10(ratio + 1e-8).mean()


def denoiser_si_snr(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Denoiser()
    batches = []
    time = torch.arange(64) / 64
    for _ in range(50):
        pitch = 2 + 6 * torch.rand(8, 1)
        clean = 400 * torch.sin(2 * math.pi * pitch * time)
        batches.append((clean + 200 * torch.randn(8, 64), clean))
    return Workload(
        model, si_snr, batches, torch.optim.Adam(model.parameters(), lr=2e-3), seed=seed
    )


class Integrator(nn.Module):
    """A recurrent network of ReLUs that starts as a running sum, as IRNN does."""

    def __init__(self, features: int = 4, width: int = 24) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.recur = nn.Linear(width, width, bias=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)
        nn.init.eye_(self.recur.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        h = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            h = torch.relu(x[:, step] + self.recur(h))
        logits: Tensor = self.head(self.norm(h))
        return logits


def irnn_meter_readings(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Integrator()
    batches = []
    for _ in range(50):
        y = torch.randint(4, (32,))
        x = 3000 * torch.rand(32, 40, 4)
        x[torch.arange(32), :, y] += 1500
        batches.append((x, y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=1e-3), seed=seed
    )
