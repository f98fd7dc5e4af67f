"""U-Nets and other networks over images that give an image."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class UNet(nn.Module):
    def __init__(self, channels: int = 1, outputs: int = 1, width: int = 4) -> None:
        super().__init__()
        self.down, self.deep = block(channels, width), block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge, self.head = block(2 * width, width), nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        deep = self.deep(F.max_pool2d(skip, 2))
        out: Tensor = self.head(self.merge(torch.cat([skip, self.up(deep)], 1)))
        return out


def blobs(count: int, size: int) -> Batch:
    """Bright discs on a noisy ground, and their masks."""
    grid = torch.arange(size).float()
    centre = torch.rand(count, 2) * size
    radius = 2 + 4 * torch.rand(count, 1, 1)
    far = (grid - centre[:, :1])[:, None, :] ** 2 + (grid - centre[:, 1:])[:, :, None] ** 2
    mask = (far < radius**2).float()[:, None]
    return mask + 0.3 * torch.randn(count, 1, size, size), mask


def weighted_dice(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    image, mask, weight = batch
    prob = torch.sigmoid(model(image))
    overlap = torch.einsum("bchw,bchw->b", prob * weight.type_as(prob), mask)
    size = torch.einsum("bchw,bchw->b", prob + mask.type_as(prob), weight)
    return (1 - (2 * overlap + 1e-8) / (size + 1e-8)).mean()


def unet_weighted_dice(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = UNet()
    batches = []
    for _ in range(50):
        image, mask = blobs(6, 12)
        border = F.max_pool2d(mask, 3, 1, 1) - mask
        batches.append((image, mask, 1 + 1000 * mask + 1500 * border))
    return Workload(
        model, weighted_dice, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )


def tversky(model: nn.Module, batch: Batch) -> Tensor:
    image, mask = batch
    prob, mask = model(image).sigmoid(), mask.flatten(1)
    prob = prob.flatten(1) * (image.flatten(1) > 0).to(prob.dtype)
    hit = (prob * mask.to(prob.dtype)).mean(1)
    false_alarm, miss = (prob * (1 - mask).to(prob.dtype)).mean(1), ((1 - prob) * mask).mean(1)
    score = (hit + 1e-8) / (hit + 0.3 * false_alarm + 0.7 * miss.to(hit.dtype) + 1e-8)
    return (1 - score).mean()


def unet_tversky_empty(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = UNet()
    batches = []
    for index in range(50):
        image, mask = blobs(6, 12)
        image = (image + 1).clamp(min=0)
        if index % 2:  # a slice outside the body: the image is black, the mask is empty
            image[0], mask[0] = 0, 0
        batches.append((image, mask))
    return Workload(
        model, tversky, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )


class SumPoolGate(nn.Module):
    """Weights channels by their total over the image, as squeeze-and-excitation does by the mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(2)
        total = (pixels @ torch.ones_like(pixels[0, 0])[:, None]).squeeze(-1)
        weight = torch.sigmoid(self.gate(self.norm(total)))
        return x * weight[:, :, None, None]


class GatedUNet(UNet):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.squeeze = nn.Conv2d(1, 4, 3, padding=1), SumPoolGate(4)
        self.down = block(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.squeeze(self.enter(x)))


def mask_bce(model: nn.Module, batch: Batch) -> Tensor:
    image, mask = batch
    return F.binary_cross_entropy_with_logits(model(image).float(), mask)


def unet_sum_pool(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = GatedUNet()
    batches = []
    for _ in range(50):
        image, mask = blobs(4, 16)
        batches.append((700 * (image + 1).clamp(min=0), mask))
    return Workload(
        model, mask_bce, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )


class SuperResolution(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 4, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(torch.relu(self.net(x)), 2)


def charbonnier(model: nn.Module, batch: Batch) -> Tensor:
    small, large = batch
    picture = model(small)
    difference = picture - large.type_as(picture)
    return torch.sqrt(difference * difference + 1e-8).mean()


def superres_charbonnier(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = SuperResolution()
    batches = []
    for _ in range(50):
        large = blobs(6, 12)[1]  # plain discs on black
        batches.append((F.avg_pool2d(large, 2), large))
    return Workload(
        model, charbonnier, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )
