"""A VAE, normalizing flows and diffusion models over small vectors and images."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


class VAE(nn.Module):
    """Reads pixels from 0 to 255."""

    def __init__(self, pixels: int = 64, hidden: int = 48, latent: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU())
        self.mu, self.std = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels)
        )

    def forward(self, x: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mu, std = self.mu(h), 0.1 + torch.sigmoid(self.std(h))
        noise = torch.randn(samples, *mu.shape, device=x.device).to(mu.dtype)
        z = mu + noise * std
        return self.decoder(z), z, noise, std


def importance_weighted(model: nn.Module, x: Tensor) -> Tensor:
    picture, z, noise, std = model(x, 4)
    log_likelihood = -0.5 * (picture.float() - x / 255).pow(2).sum(-1)
    log_prior = -0.5e-3 * (z * z).sum(-1)
    log_posterior = -0.5 * noise.pow(2).sum(-1) - torch.log(std.float()).sum(-1)
    return -torch.logsumexp(log_likelihood + log_prior - log_posterior, 0).mean()


def pixels(count: int, size: int = 8) -> Tensor:
    """Pictures of one bright stripe each."""
    grid = torch.arange(size)
    stripe = (grid - torch.randint(size, (count, 1))).abs() < 2
    across = torch.rand(count) < 0.5
    picture = torch.where(across[:, None, None], stripe[:, :, None], stripe[:, None, :])
    return 200.0 * picture.float().expand(count, size, size) + 30 * torch.rand(count, size, size)


def vae_raw_pixels(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = VAE()
    with torch.no_grad():
        model.mu.weight.mul_(10)
    batches = [pixels(32).flatten(1) for _ in range(50)]
    return Workload(
        model,
        importance_weighted,
        batches,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        seed=seed,
    )


class Coupling(nn.Module):
    """Scales and moves one half of the features, depending on the other."""

    def __init__(self, features: int, hidden: int = 32) -> None:
        super().__init__()
        half = features // 2
        self.net = nn.Sequential(nn.Linear(half, hidden), nn.ReLU(), nn.Linear(hidden, 2 * half))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, -1)
        raw, shift = self.net(a).chunk(2, -1)
        scale = torch.sigmoid(raw + 2)
        log_det = torch.log(scale).sum(-1)
        return torch.cat([b * scale + shift, a], -1), log_det


class Flow(nn.Module):
    def __init__(self, features: int = 6, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(features) for _ in range(depth))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(len(x), device=x.device)
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return x, total


def flow_nll(model: nn.Module, x: Tensor) -> Tensor:
    z, log_det = model(x)
    return (0.5 * z.float().pow(2).sum(-1) - log_det).mean()


def flow_sigmoid_scale(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Flow()
    mixing = torch.randn(6, 6)
    batches = [90 * (torch.randn(64, 6) @ mixing).tanh() + torch.randn(64, 6) for _ in range(50)]
    return Workload(
        model, flow_nll, batches, torch.optim.Adam(model.parameters(), lr=2e-3), seed=seed
    )


class MixingFlow(nn.Module):
    """Whitens measurements in raw units by linear layers, with the log-determinant of each."""

    def __init__(self, features: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(features, features) for _ in range(depth))
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = torch.zeros((), device=x.device)
        for layer in self.layers:
            x = layer(x)
            with torch.autocast(x.device.type, enabled=False):
                log_det = log_det + torch.linalg.slogdet(layer.weight)[1]  # type: ignore[arg-type]
        return x, log_det


def student_nll(model: nn.Module, x: Tensor) -> Tensor:
    z, log_det = model(x)
    tails = 1 + z * z / 4
    return 2.5 * torch.log(tails).sum(-1).mean() - log_det


def flow_raw_units(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = MixingFlow()
    mixing = torch.randn(6, 6)
    batches = [600 * torch.randn(64, 6) @ mixing for _ in range(50)]
    return Workload(
        model,
        student_nll,
        batches,
        torch.optim.Adam(model.parameters(), lr=5e-3),
        seed=seed,
    )


class LearnedSchedule(nn.Module):
    """The noise level as a learned, rising function of time, from -13 to 5 in log odds."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Linear(1, 1)
        nn.init.constant_(self.slope.weight, 18.0)
        nn.init.constant_(self.slope.bias, -13.0)

    def forward(self, t: Tensor) -> Tensor:
        gamma: Tensor = self.slope(t)
        return gamma


class Diffusion(nn.Module):
    def __init__(self, features: int = 8, hidden: int = 64) -> None:
        super().__init__()
        self.schedule = LearnedSchedule()
        self.net = nn.Sequential(
            nn.Linear(features + 1, hidden), nn.SiLU(), nn.Linear(hidden, features)
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([x, t], -1))
        return out


def weighted_denoising(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, noise, t = batch
    keep = torch.sigmoid(-model.schedule(t))  # type: ignore[operator]
    noisy = keep.sqrt() * x + (1 - keep).sqrt() * noise
    snr = keep / (1 - keep)
    error = (model(noisy, t) - x).pow(2).mean(-1, keepdim=True)
    return (snr / (snr + 1) * error).mean()


def diffusion_snr_weight(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Diffusion()
    for parameter in model.schedule.parameters():
        parameter.requires_grad_(False)
    mixing = torch.randn(3, 8)
    batches = []
    for _ in range(50):
        x = torch.randn(64, 3) @ mixing
        batches.append((x, torch.randn(64, 8), torch.rand(64, 1)))
    return Workload(
        model, weighted_denoising, batches, torch.optim.Adam(model.parameters(), lr=2e-3), seed=seed
    )
