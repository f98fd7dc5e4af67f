"""Tensors that were meant to be parameters, parameters that no optimizer has, and weights of the wrong size.

All of them are visible before the first step. A tensor with ``requires_grad`` that is an attribute of a
module but not registered gets a gradient and no update; it is neither moved by ``model.to()`` nor saved. A
weight from the wrong distribution multiplies the signal at every layer, and FP16 has little headroom for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.step.parameters import parameters_of

# Gains outside are reported; usual initialisations lie between 0.1 and 1.5.
MAX_GAIN, MIN_GAIN = 4.0, 0.01


@dataclass(frozen=True)
class UnregisteredTensor:
    """A tensor, or a module with parameters, that is an attribute of a module but not registered."""

    path: str
    kind: Literal["tensor", "parameters"]
    is_leaf: bool
    optimized: bool


def find_unregistered(model: nn.Module, optimizer: Optimizer) -> list[UnregisteredTensor]:
    """Return tensors with ``requires_grad``, and modules with parameters, that are not registered."""
    optimized = _optimized(optimizer)
    known = {id(p) for p in model.parameters()} | {id(b) for b in model.buffers()}
    registered = {id(module) for module in model.modules()}
    found: list[UnregisteredTensor] = []
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_") and name in _INTERNAL:
                continue
            place = f"{path}.{name}" if path else name
            for inner, item in _contents(place, value):
                if isinstance(item, nn.Module) and id(item) not in registered:
                    inside = [p for p in item.parameters() if id(p) not in known]
                    if any(p.requires_grad for p in inside):
                        trained = all(id(p) in optimized for p in inside)
                        found.append(UnregisteredTensor(inner, "parameters", True, trained))
                elif isinstance(item, Tensor) and item.requires_grad and id(item) not in known:
                    found.append(
                        UnregisteredTensor(inner, "tensor", item.is_leaf, id(item) in optimized)
                    )
    return found


_INTERNAL = frozenset(vars(nn.Module()))


def _contents(place: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield a tensor or module itself, or the items of a plain list, tuple or dict."""
    if isinstance(value, Tensor | nn.Module):
        yield place, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield f"{place}[{index}]", item
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{place}[{key!r}]", item


def find_untrained(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Return the parameters that require gradients and are in no group of the optimizer."""
    optimized = _optimized(optimizer)
    return [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in optimized]


def _optimized(optimizer: Optimizer) -> set[int]:
    return {id(p) for p in parameters_of(optimizer)}


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
