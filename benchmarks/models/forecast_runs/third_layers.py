"""Layers that several runs of the third set share. Each returns one tensor, so that hooks see it."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class Exp(nn.Module):
    """Turn a logarithm into a positive scale, precision or rate."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


class Scores(nn.Module):
    """The products of queries and keys, before the softmax."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries * self.scale) @ keys.transpose(-2, -1)


class Gated(nn.Module):
    """The product in the middle of a SwiGLU layer."""

    def forward(self, gate: Tensor, value: Tensor) -> Tensor:
        return nn.functional.silu(gate) * value


class Affine(nn.Module):
    """Give outputs their unit: a fixed factor and offset."""

    def __init__(self, factor: float, offset: float = 0.0) -> None:
        super().__init__()
        self.factor = factor
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor + self.offset


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers of these widths with activations between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


def seeded(seed: int) -> torch.Generator:
    """Seed torch for the initial weights; return a generator for the fixed parts of the data."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed + 1)
