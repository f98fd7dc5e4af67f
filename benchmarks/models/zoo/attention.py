"""A transformer block with attention written out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.zoo.base import Job, PlantedFailure, in_full, in_half, noise, seeded


class Attention(nn.Module):
    """Causal attention; ``scale`` multiplies the queries."""

    def __init__(self, width: int = 8, scale: float = 1.0) -> None:
        super().__init__()
        self.qkv, self.out, self.scale = nn.Linear(width, 3 * width), nn.Linear(width, width), scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q * self.scale) @ (k * self.scale).transpose(1, 2)  # <- attention-scores
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(mask, -torch.inf), -1)
        out: Tensor = self.out(weights.to(v.dtype) @ v)
        return out


class Padded(Attention):
    """A padding mask that leaves nothing in one row."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2)
        padding = torch.zeros(scores.shape, dtype=torch.bool)
        padding[0] = True
        scores = scores.masked_fill(padding, -torch.inf)
        out: Tensor = torch.softmax(scores, -1) @ v  # <- attention-masked-row
        return out


class Additive(Attention):
    """The lowest half value as a mask, added to scores that lie below zero."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = -(q * q) @ (k * k).transpose(1, 2) - 100
        mask = torch.full_like(scores, torch.finfo(scores.dtype).min)
        masked = scores + mask  # <- attention-additive-mask
        out: Tensor = torch.softmax(masked, -1).to(v.dtype) @ v
        return out


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), attention

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.attention(self.norm(x))
        return out


def scores(seed: int) -> Job:
    model = seeded(seed, lambda: Block(Attention(scale=1000.0)))
    return Job(model, in_half, noise(seed, 2, 6, 8))


def masked_row(seed: int) -> Job:
    return Job(seeded(seed, lambda: Block(Padded())), in_full, noise(seed, 2, 6, 8))


def additive(seed: int) -> Job:
    return Job(seeded(seed, lambda: Block(Additive())), in_half, noise(seed, 2, 6, 8))


PLANTED_FAILURES = (
    PlantedFailure("attention-scores", scores, "bmm", "attention"),
    PlantedFailure("attention-masked-row", masked_row, "softmax", "attention"),
    PlantedFailure("attention-additive-mask", additive, "add", "attention"),
)
