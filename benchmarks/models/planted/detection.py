"""Heads of detectors: classes, boxes and landmarks."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]


class AnchorHead(nn.Module):
    """Says for each of 12 anchors from its features if there is an object."""

    def __init__(self, features: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).squeeze(-1)


def focal_loss(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    p = torch.sigmoid(model(x))
    positive = y * (1 - p) ** 2 * torch.log(p + 1e-8)
    negative = (1 - y) * p**2 * torch.log(1 - p + 1e-8)
    return -(0.25 * positive + 0.75 * negative).mean()


def detector_focal(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = AnchorHead()
    direction = torch.randn(16)
    batches = []
    for _ in range(50):
        x = 12 * torch.randn(16, 12, 16)
        y = (x @ direction > 50).float()
        batches.append((x, y))
    return Workload(
        model, focal_loss, batches, torch.optim.Adam(model.parameters(), lr=1e-2), seed=seed
    )


class BoxHead(nn.Module):
    """Centre and size of a box in pixels of a large photo."""

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        return 500 + 200 * self.net(x)


def iou_loss(model: nn.Module, batch: Batch) -> Tensor:
    x, true = batch
    box = model(x)
    true = true.type_as(box)
    left = torch.maximum(box[:, :2] - box[:, 2:].abs() / 2, true[:, :2] - true[:, 2:] / 2)
    right = torch.minimum(box[:, :2] + box[:, 2:].abs() / 2, true[:, :2] + true[:, 2:] / 2)
    overlap = (right - left).clamp(min=0).prod(-1)
    area = box[:, 2].abs() * box[:, 3].abs()
    union = area + (true[:, 2:].float().prod(-1) - overlap)
    return (1 - overlap / (union + 1e-6)).mean()


def boxes_iou(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = BoxHead()
    mixing = 60 * torch.randn(8, 4)
    batches = []
    for _ in range(50):
        x = torch.randn(32, 8)
        batches.append((x, (500 + x @ mixing).clamp(100, 900)))
    return Workload(
        model, iou_loss, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )


class AnchorBoxes(nn.Module):
    """Two stages: sizes as factors of an anchor of 200 pixels, decoded in place, then refined."""

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(features, 48), nn.Tanh(), nn.Linear(48, 4))
        self.second = nn.Sequential(nn.Linear(features + 4, 48), nn.ReLU(), nn.Linear(48, 4))
        self.first[2].weight.data.mul_(12)  # type: ignore[operator, union-attr]

    def decode(self, t: Tensor) -> Tensor:
        boxes = torch.zeros_like(t)
        boxes[:, :2] = 200 * t[:, :2]
        boxes[:, 2:] = 200 * torch.exp(t[:, 2:])
        return boxes

    def forward(self, x: Tensor) -> Tensor:
        boxes = self.decode(self.first(x))
        seen = torch.cat([x, boxes[:, :2] / 200, torch.log(boxes[:, 2:] / 200 + 1)], -1)
        correction = self.second(seen)
        sizes = torch.log(boxes[:, 2:] + 1) + correction[:, 2:]
        return torch.cat([boxes[:, :2] / 200 + correction[:, :2], sizes], -1)


def box_loss(model: nn.Module, batch: Batch) -> Tensor:
    x, true = batch
    return F.smooth_l1_loss(model(x).float(), true)


def boxes_exp_anchor(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = AnchorBoxes()
    mixing = torch.randn(8, 4)
    batches = []
    for _ in range(50):
        x = torch.randn(32, 8)
        t = 0.5 * x @ mixing
        batches.append((x, torch.cat([t[:, :2], (200 * t[:, 2:].exp() + 1).log()], -1)))
    return Workload(
        model, box_loss, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )


class Landmarks(nn.Module):
    """Five points of a face, in pixels."""

    def __init__(self, features: int = 12) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 48), nn.ReLU(), nn.Linear(48, 10))

    def forward(self, x: Tensor) -> Tensor:
        return 20 * self.net(x)


def tukey_biweight(model: nn.Module, batch: Batch) -> Tensor:
    x, points = batch
    guess = model(x)
    u = (guess - points.type_as(guess)) / 30
    inner = 1 - u * u
    core = 1 - inner * inner * inner
    return torch.where(u.abs() < 1, core, torch.ones_like(core)).mean()


def landmarks_tukey(seed: int) -> Workload:
    torch.manual_seed(seed)
    model = Landmarks()
    mixing = 4 * torch.randn(12, 10)
    batches = []
    for index in range(50):
        x = torch.randn(32, 12)
        points = x @ mixing
        if index % 3 == 0:  # a detection that went wrong: a point far outside of the picture
            points[0, 0] = 30000.0
        batches.append((x, points))
    return Workload(
        model, tukey_biweight, batches, torch.optim.Adam(model.parameters(), lr=3e-3), seed=seed
    )
