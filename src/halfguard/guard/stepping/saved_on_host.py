"""Keep the tensors that autograd saves in host memory, until the backward pass needs them.

As ``torch.autograd.graph.save_on_cpu``, but by storage: offsets, strides and sharing stay as they were, so
kernels compute the same bits, and no storage is copied twice. Weights and buffers stay on the device.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from halfguard.guard.recovery.snapshot_store import HostCopies


class SavedOnHost(saved_tensors_hooks):
    """Saves tensors of an accelerator in host memory inside a ``with`` block; others stay where they are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(self._pack, self._unpack)
        resident = filter(_can_move, chain(model.parameters(), model.buffers()))
        self._resident = {tensor.untyped_storage()._cdata for tensor in resident}
        self._saved: weakref.WeakValueDictionary[int, _SavedStorage] = weakref.WeakValueDictionary()
        self._copies = HostCopies()

    def _pack(self, tensor: Tensor) -> Tensor | _SavedTensor:
        if not _can_move(tensor) or tensor.untyped_storage()._cdata in self._resident:
            return tensor
        storage = tensor.untyped_storage()
        saved = self._saved.get(storage._cdata)
        # Another storage may have taken the place of one that was freed.
        if saved is None or saved.source() is not storage or saved.version != tensor._version:
            saved = _SavedStorage(storage, tensor._version, self._copies)
            self._saved[storage._cdata] = saved
        place = tensor.storage_offset(), tensor.size(), tensor.stride()
        return _SavedTensor(saved, tensor.dtype, place)

    def _unpack(self, saved: Tensor | _SavedTensor) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        self._copies.record()
        self._copies.wait()
        storage = saved.storage.on_device()
        return torch.empty(0, dtype=saved.dtype, device=storage.device).set_(storage, *saved.place)


class _SavedStorage:
    """A storage in host memory, with the version of its tensors."""

    def __init__(self, storage: torch.UntypedStorage, version: int, copies: HostCopies) -> None:
        self.source, self.version = weakref.ref(storage), version
        empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
        self._host = copies.copy(empty.set_(storage))
        self._device = storage.device
        self._again: weakref.ref[torch.UntypedStorage] | None = None

    def on_device(self) -> torch.UntypedStorage:
        """Return the storage on its device again: one for all tensors that need it at the same time."""
        storage = self._again() if self._again is not None else None
        if storage is None:
            storage = self._host.to(self._device, non_blocking=True).untyped_storage()
            self._again = weakref.ref(storage)
        return storage


@dataclass(frozen=True)
class _SavedTensor:
    """A tensor in a saved storage; ``place`` is its offset, size and strides."""

    storage: _SavedStorage
    dtype: torch.dtype
    place: tuple[Any, ...]


def _can_move(tensor: Tensor) -> bool:
    """Return whether a storage, an offset and strides are all that there is to a tensor on an accelerator."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    on_host = tensor.device.type in ("cpu", "meta", "mps")
    return plain and not on_host and not tensor.is_conj() and not tensor.is_neg()
