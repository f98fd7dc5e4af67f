"""Find tensors that are not finite, at the price of one sum each.

A sum cannot hide an infinity or a NaN, and reads each value once. Only a sum that is not finite itself is
looked at exactly: it may have overflowed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from halfguard.precision.modes import HALF_DTYPES

_isfinite = torch.isfinite  # before a sensor replaces it


def bad_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors that hold NaN or infinity; the local part of a sharded one."""
    found = [local for tensor in tensors if (local := _readable(tensor)) is not None]
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in found:
        by_device.setdefault(tensor.device, []).append(tensor)
    bad: list[Tensor] = []
    for group in by_device.values():
        sums = torch.stack([_sum(tensor) for tensor in group])
        if not bool(_isfinite(sums).all()):
            bad += [tensor for tensor in group if not bool(_isfinite(tensor).all())]
    return bad


def storages(tensors: Iterable[Tensor]) -> set[int]:
    """Return the identities of the storages of tensors."""
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def _readable(tensor: Tensor) -> Tensor | None:
    to_local = getattr(tensor, "to_local", None)  # a DTensor
    local: Tensor = tensor.detach() if to_local is None else to_local().detach()
    if local.layout is not torch.strided or local.is_meta or not local.numel():
        return None
    return local if local.is_floating_point() or local.is_complex() else None


def _sum(tensor: Tensor) -> Tensor:
    tensor = _as_real(tensor)
    if tensor.dtype in HALF_DTYPES:
        return tensor.sum(dtype=torch.float32)
    return tensor.sum().to(torch.float32)


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def first_number(tensors: list[Tensor]) -> float:
    """Return the sum of the first tensor, as a number: the loss of a backward pass."""
    return float(_as_real(tensors[0].detach()).double().sum()) if tensors else 0.0
