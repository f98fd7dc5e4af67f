"""What the caller of ``doctor`` handed over, and what every framework does with it."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map, tree_map_only

from halfguard.errors import UsageError


@dataclass(frozen=True)
class Given:
    """The arguments of ``doctor``, apart from the framework's own object."""

    model: nn.Module | None = None
    optimizers: tuple[Optimizer, ...] = ()
    scaler: torch.amp.GradScaler | None = None
    precision: Any = None
    loss: Callable[[Any, Any], Any] | None = None
    batch: Any = None
    checkpoint: Any = None

    @property
    def copied_batch(self) -> Any:
        """The batch with copies of its tensors and containers, into which a forward pass may write."""
        return tree_map(_copied, self.batch)

    def needed_model(self, owner: str) -> nn.Module:
        """The model, which ``owner`` does not hold itself."""
        if self.model is None:
            raise UsageError(
                f"doctor() was given {owner}, which holds no model to look at.",
                cure="Pass the model as the first argument.",
            )
        return self.model

    def call(self, model: nn.Module, batch: Any) -> Any:
        """The loss if there is a function for it; else the model called with its batch."""
        if self.loss is not None:
            return self.loss(model, batch)
        if isinstance(batch, Mapping):
            return model(**batch)
        return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    if isinstance(leaf, UserDict):  # what a tokenizer returns, of which torch's trees know nothing
        fresh = copy.copy(leaf)
        fresh.data = tree_map(_copied, leaf.data)
        return fresh
    return leaf


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


@contextmanager
def replaced(target: Any, **values: Any) -> Iterator[None]:
    """Give an object attributes of its own for a while, in front of those of its class."""
    before = {name: vars(target)[name] for name in values if name in vars(target)}
    vars(target).update(values)
    try:
        yield
    finally:
        for name in values:
            del vars(target)[name]
        vars(target).update(before)


def is_a(value: object, name: str, *packages: str) -> bool:
    """Whether a class of this name, from one of these packages, is among the bases of the value."""
    bases = type(value).__mro__
    return any(b.__name__ == name and b.__module__.split(".")[0] in packages for b in bases)
