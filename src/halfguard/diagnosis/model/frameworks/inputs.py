"""The arguments of ``doctor``, and helpers that every framework uses on them."""

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
class DoctorInputs:
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
        """The batch with copies of its tensors and containers, since a forward pass may write to them."""
        return tree_map(_copy_leaf, self.batch)

    def require_model(self, owner: str) -> nn.Module:
        """Return the model; raise a UsageError if it is missing, since ``owner`` does not contain one."""
        if self.model is None:
            raise UsageError(
                f"doctor() was given {owner}, which does not contain the model.",
                cure="Pass the model as the first argument.",
            )
        return self.model

    def run_forward(self, model: nn.Module, batch: Any) -> Any:
        """Return the loss if there is a loss function, else the output of the model for the batch."""
        if self.loss is not None:
            return self.loss(model, batch)
        if isinstance(batch, Mapping):
            return model(**batch)
        return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def _copy_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    if isinstance(leaf, UserDict):  # a tokenizer returns one; tree_map does not open it
        fresh = copy.copy(leaf)
        fresh.data = tree_map(_copy_leaf, leaf.data)
        return fresh
    return leaf


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on the device."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


@contextmanager
def patch(target: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object during the block, over those of its class."""
    before = {name: vars(target)[name] for name in values if name in vars(target)}
    vars(target).update(values)
    try:
        yield
    finally:
        for name in values:
            del vars(target)[name]
        vars(target).update(before)


def is_a(value: object, name: str, *packages: str) -> bool:
    """Return whether the value's class, or a base of it, has this name and is from one of the packages."""
    bases = type(value).__mro__
    return any(b.__name__ == name and b.__module__.split(".")[0] in packages for b in bases)
