"""DDSP-style harmonic synthesiser: a decoder predicts harmonic amplitudes, the oscillator bank renders audio."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SR = 16000
HOP = 64


class Decoder(nn.Module):
    def __init__(self, harmonics=6, hidden=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden), nn.LeakyReLU())
        self.amp = nn.Linear(hidden, 1)
        self.dist = nn.Linear(hidden, harmonics)

    def forward(self, f0, loud):
        h = self.net(torch.stack([f0 / 800.0, loud], dim=-1))
        return torch.sigmoid(self.amp(h)) * torch.softmax(self.dist(h), dim=-1)


class Oscillator(nn.Module):
    def __init__(self, harmonics=6):
        super().__init__()
        self.register_buffer("k", torch.arange(1, harmonics + 1).float())

    def forward(self, f0, amps):
        f0_up = F.interpolate(f0[:, None], scale_factor=HOP, mode="linear", align_corners=False)[:, 0]
        amp_up = F.interpolate(amps.transpose(1, 2), scale_factor=HOP, mode="linear", align_corners=False)
        omega = 2.0 * math.pi * f0_up / SR
        phase = torch.cumsum(omega, dim=-1).half().remainder(2.0 * math.pi)  # guilty
        waves = torch.sin(self.k[None, :, None] * phase[:, None, :])
        return (amp_up * waves).sum(dim=1)


class Synth(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()
        self.osc = Oscillator()

    def forward(self, f0, loud):
        return self.osc(f0, self.decoder(f0, loud))


def loss_fn(model, batch):
    audio = model(batch["f0"], batch["loud"])
    return 10.0 * F.mse_loss(audio, batch["audio"])


def make():
    torch.manual_seed(37)
    model = Synth()
    B, frames = 3, 32
    f0 = 600.0 + 160.0 * torch.rand(B, 1) + 10.0 * torch.randn(B, frames)
    with torch.no_grad():
        t = F.interpolate(f0[:, None], scale_factor=HOP, mode="linear", align_corners=False)[:, 0]
        phase = torch.cumsum(2 * math.pi * t / SR, dim=-1)
        audio = 0.3 * torch.sin(phase) + 0.15 * torch.sin(2 * phase) + 0.01 * torch.randn_like(phase)
    return model, loss_fn, {"f0": f0, "loud": torch.rand(B, frames), "audio": audio}
