"""Weights of the wrong size, visible before the first step.

A weight from the wrong distribution multiplies the signal at every layer, and FP16 has little headroom.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# Gains outside are reported; usual initialisations lie between 0.1 and 1.5.
MAX_GAIN, MIN_GAIN = 4.0, 0.01


@torch.no_grad()
def find_bad_gains(model: nn.Module) -> dict[str, float]:
    """Return the gain of weights that multiply a signal of independent values too much or too little."""
    gains = {}
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.dim() < 2 or not weight.numel():
                continue
            gain = weight.double().square().mean().sqrt().item() * math.sqrt(
                _fan_in(module, weight)
            )
            if gain and math.isfinite(gain) and not MIN_GAIN <= gain <= MAX_GAIN:
                gains[f"{path}.{name}" if path else name] = gain
    return gains


def _fan_in(module: nn.Module, weight: Tensor) -> int:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return 1  # a row is looked up; nothing is summed
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return weight[0].numel()
    # The summed dimension of a custom weight is not known: the smaller one is the safe guess.
    return min(weight.shape[0], weight[0].numel())
