"""Tensors that were meant to be parameters, parameters that nobody trains, and weights of the wrong size.

All of it is visible before the first step. A tensor with ``requires_grad`` that hangs on a module without
being registered gets a gradient and no update; it is not moved by ``model.to()`` and not saved. A weight
drawn from the wrong distribution multiplies the signal at every layer, and half has few doublings to give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LARGE, SMALL = (
    4.0,
    0.01,
)  # gains outside are reported; usual initialisations lie between 0.1 and 1.5


@dataclass(frozen=True)
class Stray:
    """A tensor that hangs on a module and is not registered there."""

    path: str
    what: str  # "tensor" or "parameters"
    leaf: bool
    optimized: bool


def strays(model: nn.Module, optimizer: Optimizer) -> list[Stray]:
    """Tensors with ``requires_grad``, and modules with parameters, that the model does not know of."""
    optimized = _optimized(optimizer)
    known = {id(p) for p in model.parameters()} | {id(b) for b in model.buffers()}
    registered = {id(module) for module in model.modules()}
    found: list[Stray] = []
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_") and name in _INTERNAL:
                continue
            place = f"{path}.{name}" if path else name
            for inner, item in _opened(place, value):
                if isinstance(item, nn.Module) and id(item) not in registered:
                    inside = [p for p in item.parameters() if id(p) not in known]
                    if any(p.requires_grad for p in inside):
                        trained = all(id(p) in optimized for p in inside)
                        found.append(Stray(inner, "parameters", True, trained))
                elif isinstance(item, Tensor) and item.requires_grad and id(item) not in known:
                    found.append(Stray(inner, "tensor", item.is_leaf, id(item) in optimized))
    return found


_INTERNAL = frozenset(vars(nn.Module()))


def _opened(place: str, value: object) -> Iterator[tuple[str, object]]:
    """A value itself, or what a plain list, tuple or dict of them holds."""
    if isinstance(value, Tensor | nn.Module):
        yield place, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield f"{place}[{index}]", item
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{place}[{key!r}]", item


def untrained(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Parameters that require gradients and are in no group of the optimizer."""
    optimized = _optimized(optimizer)
    return [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in optimized]


def _optimized(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


@torch.no_grad()
def bad_gains(model: nn.Module) -> dict[str, float]:
    """Weights by name whose gain, by which they multiply a signal of independent values, is off."""
    gains = {}
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.dim() < 2 or not weight.numel():
                continue
            gain = weight.double().square().mean().sqrt().item() * math.sqrt(
                _fan_in(module, weight)
            )
            if gain and math.isfinite(gain) and not SMALL <= gain <= LARGE:
                gains[f"{path}.{name}" if path else name] = gain
    return gains


def _fan_in(module: nn.Module, weight: Tensor) -> int:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return 1  # a row is looked up, nothing is summed
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return weight[0].numel()
    # Nobody says which dimension of a hand-made weight is summed over: the smaller one is the safe guess.
    return min(weight.shape[0], weight[0].numel())
