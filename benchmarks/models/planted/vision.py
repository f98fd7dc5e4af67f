"""Classifiers of pictures that normalize by hand."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


def classify(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x).float(), y)


class InstanceNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        variance = (x * x).mean((2, 3), keepdim=True) - mean * mean
        return (x - mean) / torch.sqrt(variance + 1e-5)


class Thermal(nn.Module):
    """Sorts pictures of a heat camera: kelvin, with small differences."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(1, 6, 3), InstanceNorm()
        self.deep, self.head = nn.Conv2d(6, 8, 3, stride=2), nn.Linear(8 * 9, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.enter(x)))
        return self.head(torch.relu(self.deep(h)).flatten(1))


def thermal_variance(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Thermal()
    pictures = torch.randn(4, 1, 10, 10)
    batches = []
    for _ in range(50):
        y = torch.randint(4, (12,))
        batches.append((180 + pictures[y] + 0.5 * torch.randn(12, 1, 10, 10), y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )


class PatchContrast(nn.Module):
    """Gives every patch mean 0 and contrast 1."""

    def forward(self, patches: Tensor) -> Tensor:
        centred = patches - patches.mean(-1, keepdim=True)
        power = (centred * centred).mean(-1, keepdim=True)
        return centred / torch.sqrt(power + 1e-8)


class PatchNet(nn.Module):
    """Embeds the patches of a scanned page, of which many are blank, and averages them."""

    def __init__(self, patch: int = 16, width: int = 24, classes: int = 4) -> None:
        super().__init__()
        self.filters, self.contrast = nn.Linear(patch, width, bias=False), PatchContrast()
        self.mlp, self.head = nn.Linear(width, 48), nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.contrast(self.filters(x))
        return self.head(torch.relu(self.mlp(h)).mean(1))


def page_blank_patches(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = PatchNet()
    letters = torch.randn(4, 16)
    batches = []
    for index in range(50):
        y = torch.randint(4, (24,))
        x = letters[y][:, None] + torch.randn(24, 9, 16)
        if index % 2:
            x[:, 6:] = 0.0  # the lower third of these pages is empty
        batches.append((x, y))
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )


class GlobalResponse(nn.Module):
    """Divides each channel's response by the mean over channels, as in ConvNeXt V2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        energy = (x * x).mean(1, keepdim=True)
        response = torch.sqrt(energy)
        return self.gamma * x * (response / (response.mean(-1, keepdim=True) + 1e-6))


class Mixer(nn.Module):
    """An MLP-Mixer over 9 patches with raw intensities."""

    def __init__(self, patch: int = 16, width: int = 24, classes: int = 4) -> None:
        super().__init__()
        self.embed, self.tokens = nn.Linear(patch, width), nn.Linear(9, 9)
        self.up, self.response = nn.Linear(width, 48), GlobalResponse(48)
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h + self.tokens(h.transpose(1, 2)).transpose(1, 2)
        h = self.response(torch.relu(self.up(h)))
        return self.head(self.norm(h).mean(1))


def mixer_response_norm(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Mixer()
    pictures = torch.randn(4, 9, 16)
    batches = []
    for index in range(50):
        y = torch.randint(4, (24,))
        x = pictures[y] + torch.randn(24, 9, 16)
        batches.append((x * (1000 if index % 5 == 0 else 30), y))  # some scans are 16 bits deep
    return Workload(
        model, classify, batches, torch.optim.AdamW(model.parameters(), lr=2e-3), seed=seed
    )
