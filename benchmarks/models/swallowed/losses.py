"""Faults in the loss function, outside of every module."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.models.swallowed.base import Model, Planted, regression

Batch = tuple[Tensor, Tensor]


def cosine_by_hand(model: Model, batch: Batch) -> Tensor:
    a, b = model(batch[0]), batch[1].half()
    length = torch.sqrt((a * a).sum(-1)) * torch.sqrt((b * b).sum(-1))  # <- cosine-by-hand
    return 1 - ((a.float() * b).sum(-1) / (length + 1e-6)).mean()


def inverse_distance(model: Model, batch: Batch) -> Tensor:
    a = model(batch[0])
    gap = a[:, None] - a[None]
    square = (gap * gap).sum(-1)  # <- inverse-distance
    near = 1 / (1 + square / 1e5)
    return ((near - 0.5) ** 2).mean()


def geman_mcclure(model: Model, batch: Batch) -> Tensor:
    error = model(batch[0]) - batch[1].half()
    return (1 - 1e5 / (1e5 + error * error)).mean()  # <- geman-mcclure


def welsch(model: Model, batch: Batch) -> Tensor:
    error = model(batch[0]) - batch[1].half()
    return (1 - torch.exp(-(error * error) / 2e5)).mean()  # <- welsch


def student_kernel(model: Model, batch: Batch) -> Tensor:
    points = model(batch[0])
    gram = points @ points.T  # <- student-kernel
    norm = gram.diagonal()
    closeness = 1 / (1 + (norm[:, None] + norm[None]) / 1e5)
    return (closeness - 0.3).abs().mean()


def rbf_discrepancy(model: Model, batch: Batch) -> Tensor:
    a, b = model(batch[0]), batch[1].half()
    gap = a[:, None] - b[None]
    kernel = torch.exp(-torch.sum(gap * gap, -1) / 3e5)  # <- rbf-discrepancy
    return 1 - kernel.mean()


def mixture(model: Model, batch: Batch) -> Tensor:
    centre = model(batch[0])
    error = centre - batch[1][:, :1].half()
    density = -error * error / 2e5  # <- mixture-density
    return -torch.logsumexp(density, -1).mean()


def dice_denominator(model: Model, batch: Batch) -> Tensor:
    p, t = torch.relu(model(batch[0])), batch[1].abs().half()
    overlap = (p.float() * t).sum(-1)
    size = (p * p).sum(-1) + (t * t).sum(-1)  # <- dice-denominator
    return 1 - (overlap / (size + 1.0).sqrt()).mean()


def finite_only(model: Model, batch: Batch) -> Tensor:
    error = model(batch[0]) - batch[1].half()
    square = error * error  # <- finite-only
    return torch.where(square.isfinite(), square, 0.0).mean() / 1e4


def cosine_matrix(model: Model, batch: Batch) -> Tensor:
    a, b = model(batch[0]), model(batch[0].flip(0))
    lengths = a.abs().mean(-1)[:, None] * b.abs().mean(-1)[None]  # <- cosine-matrix
    logits = (a.float()[:, None] * b.float()).sum(-1) / (8 * lengths + 1e-3)
    return F.cross_entropy(logits, torch.arange(len(a)))


def signal_to_noise(model: Model, batch: Batch) -> Tensor:
    reference, estimate = model(batch[0]), batch[1] * 100
    energy = (reference * reference).sum(-1, keepdim=True)  # <- signal-to-noise
    target = (estimate * reference).sum(-1, keepdim=True) / energy * reference
    noise = estimate - target
    return torch.log10(
        (noise.float().pow(2).sum(-1) + 1) / (target.float().pow(2).sum(-1) + 1)
    ).mean()


def deep_clustering(model: Model, batch: Batch) -> Tensor:
    points, centres = model(batch[0]), batch[1][:4].half() * 100
    gap = points[:, None] - centres
    assigned = 1.0 / (1.0 + (gap * gap).sum(-1) / 1e4)  # <- deep-clustering
    share = assigned / (assigned.sum(-1, keepdim=True) + 1e-3)
    return (share * share).sum(-1).neg().mean()


def ratio_loss(model: Model, batch: Batch) -> Tensor:
    anchor = model(batch[0])
    near = (anchor - batch[1].half()).abs().sum(-1)
    far = anchor - anchor.roll(1, 0)
    apart = (far * far).sum(-1).sqrt()  # <- ratio-loss
    return (near / (near + apart + 1.0)).mean()


def product_of_chances(model: Model, batch: Batch) -> Tensor:
    out = model(batch[0])
    chance = torch.sigmoid(out.detach() - 6)
    joint = chance[:, :4] * chance[:, 4:]
    joint = joint * joint.flip(-1)  # <- product-of-chances
    share = joint.float() / (joint.sum(-1, keepdim=True) + 1e-10)
    return -(share * F.logsigmoid(out[:, :4])).sum(-1).mean()


def capped_penalty(model: Model, batch: Batch) -> Tensor:
    out = model(batch[0])
    penalty = (out * out).mean(-1)  # <- penalty-over-itself
    return (out.float().square().mean(-1) / (penalty + 1e4)).mean()


def discounted_return(model: Model, batch: Batch) -> Tensor:
    value = model(batch[0])
    total = torch.zeros(value.shape[0], dtype=value.dtype)
    for reward in value.abs().unbind(-1):
        total = 8 * total + reward  # <- discounted-return
    return (value.float().mean(-1) / (1 + total.float() / 1e5)).mean()


PLANTED = (
    Planted("cosine-by-hand", regression(cosine_by_hand), None),
    Planted("inverse-distance", regression(inverse_distance), None),
    Planted("geman-mcclure", regression(geman_mcclure, by=3000), None),
    Planted("welsch", regression(welsch, by=3000), None),
    Planted("student-kernel", regression(student_kernel), None),
    Planted("rbf-discrepancy", regression(rbf_discrepancy), None),
    Planted("mixture-density", regression(mixture, by=3000), None),
    Planted("dice-denominator", regression(dice_denominator), None),
    Planted("finite-only", regression(finite_only, by=3000), None),
    Planted("cosine-matrix", regression(cosine_matrix, by=3000), None),
    Planted("signal-to-noise", regression(signal_to_noise), None),
    Planted("deep-clustering", regression(deep_clustering, by=300), None),
    Planted("ratio-loss", regression(ratio_loss), None),
    Planted("product-of-chances", regression(product_of_chances, by=1.0), None),
    Planted("penalty-over-itself", regression(capped_penalty), None),
    Planted("discounted-return", regression(discounted_return, by=1.0), None),
)
