"""FP32 copies of tensors that hold numbers which FP32 would not have computed.

A shadow belongs to a storage, not to a tensor: views, in-place operations and tensors saved for the backward
pass share the storage, and read its shadow with their own sizes and strides. An element of a shadow that
agrees with the real one is equal to it, so that a shadow holds the effect of flagged operations and nothing
else: no rounding differences pile up in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from halfguard.tracing.fp32_call import to_wide

AGREE = 2.0**-7  # relative: four roundings of bfloat16, 16 of float16


@dataclass(slots=True)
class _Shadow:
    storage: StorageWeakRef
    values: Tensor  # one per element of the storage, in its order
    itemsize: int  # of the real elements
    sources: frozenset[int]


class Shadows:
    """The shadows of a step, and the flags that they come from."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.is_full = False
        self._of: dict[int, _Shadow] = {}
        self._bytes = 0

    def has(self, tensor: Tensor) -> bool:
        """Return whether a tensor has a shadow."""
        return bool(self._of) and self._find(tensor) is not None

    def read(self, tensor: Tensor) -> Tensor:
        """Return the shadow of a tensor, in FP32; without one, the tensor itself in FP32."""
        shadow = self._find(tensor)
        if shadow is None:
            return to_wide(tensor)
        return _region(shadow.values, tensor).clone()

    def sources(self, tensor: Tensor) -> frozenset[int]:
        """Return the flags that changed a tensor."""
        shadow = self._find(tensor)
        return frozenset() if shadow is None else shadow.sources

    def write(
        self, tensor: Tensor, values: Tensor, changed: Tensor, sources: frozenset[int]
    ) -> None:
        """Set the shadow of a tensor to ``values`` where they are ``changed``; end it where none is."""
        if not bool(changed.any()):
            self.drop(tensor)
            return
        values = torch.where(changed, values, tensor.to(values.dtype))
        shadow = self._find(tensor)
        if shadow is None:
            shadow = self._new(tensor, values)
            if shadow is None:
                return
        _region(shadow.values, tensor).copy_(values)
        shadow.sources |= sources

    def drop(self, tensor: Tensor) -> None:
        """Forget the shadow of a tensor."""
        shadow = self._find(tensor) if self._of else None
        if shadow is None:
            return
        if _covers(tensor):
            self._drop(tensor)
        else:  # the rest of the storage keeps its own
            _region(shadow.values, tensor).copy_(tensor)

    def _find(self, tensor: Tensor) -> _Shadow | None:
        if tensor.layout is not torch.strided or not tensor.numel():
            return None
        shadow = self._of.get(tensor.untyped_storage()._cdata)
        # A view in a dtype of another size cannot be read: its elements are not those of the shadow.
        return shadow if shadow is not None and shadow.itemsize == tensor.element_size() else None

    def _new(self, tensor: Tensor, values: Tensor) -> _Shadow | None:
        storage = tensor.untyped_storage()
        count = storage.nbytes() // tensor.element_size()
        size = count * values.element_size()
        self._purge()
        if self._bytes + size > self.max_bytes:
            self.is_full = True
            return None
        flat = tensor.as_strided((count,), (1,), 0)
        weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        wide = flat.to(values.dtype, copy=True)
        shadow = self._of[weak.cdata] = _Shadow(weak, wide, tensor.element_size(), frozenset())
        self._bytes += size
        return shadow

    def _drop(self, tensor: Tensor) -> None:
        shadow = self._of.pop(tensor.untyped_storage()._cdata, None)
        if shadow is not None:
            self._bytes -= shadow.values.nbytes

    def _purge(self) -> None:
        for key in [key for key, shadow in self._of.items() if shadow.storage.expired()]:  # type: ignore[no-untyped-call]
            self._bytes -= self._of.pop(key).values.nbytes


def differs(shadow: Tensor, reference: Tensor) -> Tensor:
    """Return where two results of one operation are different numbers."""
    if not (shadow.is_floating_point() or shadow.is_complex()):
        return shadow != reference
    largest = torch.maximum(shadow.abs(), reference.abs())
    apart = (shadow - reference).abs() > AGREE * largest
    finite = shadow.isfinite() & reference.isfinite()
    same = (shadow == reference) | (shadow.isnan() & reference.isnan())
    return torch.where(finite, apart, ~same)


def _region(values: Tensor, tensor: Tensor) -> Tensor:
    return values.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _covers(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
