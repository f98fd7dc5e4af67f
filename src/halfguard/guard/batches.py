"""What a batch says of itself: is it finite, is anything left to learn from, which samples are in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_DESCRIBED = 12  # entries of a batch that a description shows


@torch.no_grad()
def largest_input(batch: Any) -> Tensor | None:
    """The largest magnitude among the floating-point tensors of a batch, NaN if one holds NaN."""
    floats = [
        leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    floats = [leaf for leaf in floats if leaf.numel()]
    if not floats:
        return None
    norms = torch._foreach_norm(floats, math.inf)
    return (
        norms[0] if len(norms) == 1 else torch.stack([norm.to(norms[0]) for norm in norms]).amax()
    )


def leaves(batch: Any) -> Iterator[Any]:
    """Whatever lies in nested mappings, sequences and objects with fields."""
    if isinstance(batch, Tensor | str | bytes):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, Iterable):
        for value in batch:
            yield from leaves(value)
    elif hasattr(batch, "__dict__"):
        yield from leaves(vars(batch))
    else:
        yield batch


def every_label_ignored(batch: Any, ignore_index: int) -> bool:
    """Whether an integer tensor of the batch holds nothing but the label that losses leave out.

    This reads the device, so it is for a step whose loss was not finite.
    """
    integers = [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) and _is_integer(leaf)]
    return any(bool((leaf == ignore_index).all()) for leaf in integers if leaf.numel())


def describe(batch: Any, about: Any = None) -> str:
    """A line for the journal: what the loader said of the batch, then shapes, names and numbers in it."""
    parts = [] if about is None else [str(about)]
    for leaf in leaves(batch):
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
