"""Tensors as regions of storages: views, saved tensors and in-place writes share the numbers of a storage."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def storage_key(tensor: Tensor) -> int:
    """Return what identifies the storage of a tensor while it lives."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    key: int = tensor.untyped_storage()._cdata
    return key


def real_size(tensor: Tensor) -> int:
    """Return the size of a real number of the tensor, in bytes."""
    return tensor.element_size() // (2 if tensor.is_complex() else 1)


def whole_storage(tensor: Tensor) -> Tensor:
    """Return all elements of a tensor's storage."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((count,), (1,), 0)


def as_reals(tensor: Tensor) -> Tensor:
    """Return the numbers in order, a complex one as two."""
    tensor = tensor.contiguous().resolve_conj()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def is_all_finite(tensor: Tensor) -> bool:
    """Return whether the sum is finite; one number that is not makes it so."""
    return math.isfinite(abs(tensor.sum().item()))


def has_digits(tensor: Tensor) -> bool:
    """Return whether a tensor holds real or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def region_of(numbers: Tensor, tensor: Tensor) -> Tensor:
    """Return the part of a storage's numbers that a tensor shows."""
    if tensor.is_complex():
        numbers = torch.view_as_complex(numbers.view(-1, 2))
    region = numbers.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return region.conj() if tensor.is_conj() else region


def covers_storage(tensor: Tensor) -> bool:
    """Return whether a tensor is all of its storage, in order."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return whole and tensor.is_contiguous() and not tensor.storage_offset()


def may_overlap(tensor: Tensor) -> bool:
    """Return whether two elements of a view may be the same number, as in a sliding window."""
    reach = 1
    sizes = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
    for stride, size in sizes:
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False
