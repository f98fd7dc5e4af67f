"""What a batch says of itself: is it finite, is anything left to learn from, which samples are in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

_DEEPEST = 16
_DESCRIBED = 12  # entries of a batch that a description shows


@torch.no_grad()
def all_finite(batch: Any) -> bool:
    """Whether every floating-point tensor of a batch is finite. This reads the device."""
    tensors = [
        leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    return all(bool(_values(tensor).isfinite().all()) for tensor in tensors)


def _values(tensor: Tensor) -> Tensor:
    """What a tensor stores, whatever its layout."""
    if tensor.layout is torch.strided:
        return tensor
    return tensor._values() if tensor.is_sparse else tensor.values()


def leaves(batch: Any, depth: int = 0) -> Iterator[Any]:
    """Whatever lies in nested mappings, lists, tuples and objects with fields.

    An iterator is a leaf: looking into it would use it up. So is what lies too deep to be a batch.
    """
    if isinstance(batch, Mapping):
        inside: Iterable[Any] = batch.values()
    elif isinstance(batch, Sequence | Set) and not isinstance(batch, str | bytes):
        inside = batch
    elif is_dataclass(batch) and not isinstance(batch, type):
        inside = [getattr(batch, field.name) for field in fields(batch)]
    elif (
        hasattr(batch, "__dict__")
        and not isinstance(batch, Tensor | Iterator)
        and not callable(batch)
    ):
        inside = vars(batch).values()
    else:
        yield batch
        return
    if depth < _DEEPEST:
        for value in inside:
            yield from leaves(value, depth + 1)


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
