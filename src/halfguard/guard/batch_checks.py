"""Checks of a batch: is it finite, does it have labels, and how is it described in the journal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from halfguard.step.nested import batch_leaves

_DESCRIBED = 12  # entries of a batch that a description shows


@torch.no_grad()
def batch_is_finite(batch: Any) -> bool:
    """Return whether every floating-point tensor of a batch is finite. This reads the device."""
    tensors = [
        leaf
        for leaf in batch_leaves(batch)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    return all(bool(_values(tensor).isfinite().all()) for tensor in tensors)


def _values(tensor: Tensor) -> Tensor:
    """Return the stored values of a tensor of any layout."""
    if tensor.layout is torch.strided:
        return tensor
    return tensor._values() if tensor.is_sparse else tensor.values()


def every_label_ignored(batch: Any, ignore_index: int) -> bool:
    """Return whether an integer tensor of the batch holds only the label that losses ignore.

    This reads the device, so call it only for a step whose loss was not finite.
    """
    integers = [
        leaf for leaf in batch_leaves(batch) if isinstance(leaf, Tensor) and _is_integer(leaf)
    ]
    return any(bool((leaf == ignore_index).all()) for leaf in integers if leaf.numel())


def describe_batch(batch: Any, about: Any = None) -> str:
    """Return a line for the journal: the user's description, then shapes, strings and numbers."""
    parts = [] if about is None else [str(about)]
    for leaf in batch_leaves(batch):
        if isinstance(leaf, Tensor):
            parts.append(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}")
        elif isinstance(leaf, str | int | float):
            parts.append(repr(leaf))
    shown = parts[:_DESCRIBED]
    return ", ".join(part if len(part) <= 120 else f"{part[:117]}..." for part in shown)


def _is_integer(tensor: Tensor) -> bool:
    return (
        not tensor.is_floating_point()
        and not tensor.is_complex()
        and tensor.dtype is not torch.bool
    )
