"""Healthy jobs with large constants, norms, dropout, saturation and losses that are written with care."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from benchmarks.models.planted.healthy_attention import Batch, classify, gaussians, workload
from halfguard import Workload


def regression(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.mse_loss(model(x).float(), y)


class RawPixels(nn.Module):
    """Pixels from 0 to 255 into a convolution, then BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x))).flatten(1)))


def cnn_raw_pixels(seed: int) -> Workload:
    torch.manual_seed(seed)
    pictures = 255 * torch.rand(3, 1, 6, 6)
    batches = []
    for _ in range(50):
        y = torch.randint(3, (12,))
        batches.append(((pictures[y] + 40 * torch.randn(12, 1, 6, 6)).clamp(0, 255), y))
    return workload(RawPixels(), classify, batches, seed, 3e-3)


class LargeOffset(nn.Module):
    """Kelvin times a hundred, which LayerNorm takes away."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.norm(x + 29315.0))


def mlp_large_offset(seed: int) -> Workload:
    torch.manual_seed(seed)
    centres = 100 * torch.randn(3, 16)
    batches = [gaussians(32, centres, 80.0) for _ in range(50)]
    return workload(LargeOffset(), classify, batches, seed, 3e-3)


class CarefulNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-8)).type_as(x)


def rms_in_float32(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), CarefulNorm(), nn.Linear(32, 32), nn.SiLU())
    model.append(nn.Linear(32, 3))
    centres = 900 * torch.randn(3, 16)
    return workload(model, classify, [gaussians(32, centres, 900.0) for _ in range(50)], seed, 3e-3)


def saturated_gates(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.Sigmoid(), nn.Linear(32, 32), nn.Tanh())
    model.append(nn.Linear(32, 3))
    centres = 60 * torch.randn(3, 16)
    return workload(model, classify, [gaussians(32, centres, 60.0) for _ in range(50)], seed, 3e-3)


class Ratings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(100, 16), nn.Embedding(80, 16)
        self.mlp = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return 20 * self.mlp(torch.cat([self.user(users), self.item(items)], -1)).squeeze(-1)


def careful_bpr(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    users, liked, other = batch
    return -F.logsigmoid((model(users, liked) - model(users, other)).float()).mean()


def ratings_logsigmoid(seed: int) -> Workload:
    torch.manual_seed(seed)
    quality = torch.randn(80)
    batches = []
    for _ in range(50):
        users, a, b = (torch.randint(n, (64,)) for n in (100, 80, 80))
        better = quality[a] > quality[b]
        batches.append((users, torch.where(better, a, b), torch.where(better, b, a)))
    return workload(Ratings(), careful_bpr, batches, seed, 3e-3)


class SmallVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, 32), nn.Linear(4, 32)
        self.mu, self.logvar, self.out = nn.Linear(32, 4), nn.Linear(32, 4), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.relu(self.encoder(x))
        mu, logvar = self.mu(h), self.logvar(h).clamp(-30, 20)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.out(torch.relu(self.decoder(z))), mu, logvar


def elbo(model: nn.Module, x: Tensor) -> Tensor:
    picture, mu, logvar = model(x)
    divergence = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(-1).mean()
    return F.mse_loss(picture.float(), x) + 1e-2 * divergence


def vae_clamped(seed: int) -> Workload:
    torch.manual_seed(seed)
    mixing = torch.randn(3, 16)
    batches = [torch.randn(32, 3) @ mixing for _ in range(50)]
    return workload(SmallVAE(), elbo, batches, seed, 3e-3)


class MaxGraph(nn.Module):
    """The largest message of the neighbours; nodes without any get -inf, then 0."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(6, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        edges = x[..., 6:] > 0
        message = self.message(x[..., :6])[:, None]
        best = message.masked_fill(~edges[..., None], float("-inf")).amax(2)
        best = torch.where(edges.any(-1, keepdim=True), best, torch.zeros_like(best))
        return self.head(torch.relu(best).mean(1))


def graph_max_neighbours(seed: int) -> Workload:
    torch.manual_seed(seed)
    centres = torch.randn(3, 6)
    batches = []
    for _ in range(50):
        y = torch.randint(3, (24,))
        x = centres[y][:, None] + torch.randn(24, 8, 6)
        batches.append((torch.cat([x, (torch.rand(24, 8, 8) < 0.3).float()], -1), y))
    return workload(MaxGraph(), classify, batches, seed, 5e-3)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


def gru_counts(seed: int) -> Workload:
    torch.manual_seed(seed)
    batches = []
    for _ in range(50):
        y = torch.randint(3, (24,))
        x = torch.poisson(torch.full((24, 8, 3), 20.0))
        x[torch.arange(24), :, y] += 15
        batches.append((x, y))
    return workload(Recurrent(), classify, batches, seed, 5e-3)


class UNet1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Linear(24, 24), nn.Linear(12, 12)
        self.up, self.head = nn.Linear(12, 24), nn.Linear(48, 24)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.relu(self.down(x))
        deep = torch.relu(self.deep(F.max_pool1d(skip[:, None], 2).squeeze(1)))
        return self.head(torch.cat([skip, self.up(deep)], -1))


def soft_dice(model: nn.Module, batch: Batch) -> Tensor:
    x, mask = batch
    p = torch.sigmoid(model(x).float())
    return 1 - ((2 * (p * mask).sum(-1) + 1e-8) / (p.sum(-1) + mask.sum(-1) + 1e-8)).mean()


def unet_dice_float32(seed: int) -> Workload:
    torch.manual_seed(seed)
    batches = []
    for _ in range(50):
        start = torch.randint(0, 16, (24, 1))
        mask = ((torch.arange(24) >= start) & (torch.arange(24) < start + 8)).float()
        mask[0] = 0
        batches.append((mask + 0.2 * torch.randn(24, 24), mask))
    return workload(UNet1d(), soft_dice, batches, seed, 3e-3)


class Cosines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
        self.right = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
        return a @ b.t() / 0.02


def info_nce(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(*batch)
    itself = torch.zeros(len(logits), len(logits)).fill_diagonal_(1).bool()
    own = logits.diagonal().float()
    others = logits.masked_fill(itself, float("-inf")).float()
    return (torch.logaddexp(own, others.logsumexp(1)) - own).mean()


def contrastive_logsumexp(seed: int) -> Workload:
    torch.manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(12, 12))[0]
    batches = []
    for _ in range(50):
        a = torch.randn(24, 12)
        batches.append((a, a @ turn + 0.1 * torch.randn(24, 12)))
    return workload(Cosines(), info_nce, batches, seed, 3e-3)


class Denoising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 8))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.net(torch.cat([x, t], -1))


def noise_prediction(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    x, noise, t = batch
    keep = torch.cos(1.5 * t).pow(2)
    guess = model(keep.sqrt() * x + (1 - keep).sqrt() * noise, t)
    weight = (keep / (1 - keep + 1e-8)).clamp(max=5.0)
    return (weight * (guess.float() - noise).pow(2)).mean()


def diffusion_min_snr(seed: int) -> Workload:
    torch.manual_seed(seed)
    mixing = torch.randn(2, 8)
    batches = [
        (torch.randn(64, 2) @ mixing, torch.randn(64, 8), torch.rand(64, 1)) for _ in range(50)
    ]
    return workload(Denoising(), noise_prediction, batches, seed, 5e-3)


def mlp_sparse_labels(seed: int) -> Workload:
    """Half of the labels are unknown, and one batch in ten has only one that is known."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    centres = torch.randn(3, 16)
    batches = []
    for index in range(50):
        x, y = gaussians(32, centres)
        unknown = torch.rand(32) < 0.5 if index % 10 else torch.arange(32) > 0
        batches.append((x, y.masked_fill(unknown, -100)))
    return workload(model, classify, batches, seed, 3e-3)
