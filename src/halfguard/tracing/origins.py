"""Which bad number came from where: an origin for every storage that holds one.

Numbers travel: through views, saved tensors, in-place writes. What they share is the storage, so that is
what an origin is attached to. A storage is held weakly, and by the weak reference its identity cannot be
given to another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from halfguard.records.culprit import Culprit, TensorRange

# Operations that put in the constant they are given. An infinity from one of them is meant, such as a mask.
FILLS = frozenset(
    {
        *("masked_fill", "masked_fill_", "fill", "fill_", "full", "full_like", "new_full", "where"),
        *("scalar_tensor", "lift_fresh", "lift_fresh_copy", "constant_pad_nd", "index_fill"),
        *("index_fill_", "scatter", "scatter_"),
    }
)
# Memory that nobody has written yet holds anything at all.
UNWRITTEN = frozenset(
    {
        *("empty", "empty_like", "empty_permuted", "empty_strided"),
        *("new_empty", "new_empty_strided"),
    }
)
# In-place operations that do not read what they overwrite.
OVERWRITES = frozenset(
    {"copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_"}
)


@dataclass(slots=True)
class Origin:
    """Where a bad number was made, and whether an infinity was put there on purpose."""

    index: int
    intended: bool
    culprit: Culprit


class Origins:
    """The storages that are known to hold numbers which are not finite."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[StorageWeakRef, Origin]] = {}
        self._unwritten: dict[int, StorageWeakRef] = {}
        self._count = 0

    def new(self, culprit: Culprit, *, intended: bool = False) -> Origin:
        """A new origin, later than all before it."""
        self._count += 1
        return Origin(self._count, intended, culprit)

    def put(self, tensor: Tensor, origin: Origin) -> None:
        """Note where the bad numbers of a tensor came from."""
        reference = _weak(tensor)
        self._of[reference.cdata] = reference, origin
        self._unwritten.pop(reference.cdata, None)

    def get(self, tensor: Tensor) -> Origin | None:
        """Where they came from, if that is known."""
        found = self._of.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[1]

    def clear(self, tensor: Tensor) -> None:
        """A tensor was found finite; if it is all of its storage, nothing bad is left there."""
        storage = tensor.untyped_storage()
        if storage.nbytes() == tensor.numel() * tensor.element_size():
            self._of.pop(storage._cdata, None)
            self._unwritten.pop(storage._cdata, None)

    def mark_unwritten(self, tensor: Tensor) -> None:
        """Note memory that was reserved but not written."""
        reference = _weak(tensor)
        self._of.pop(reference.cdata, None)
        self._unwritten[reference.cdata] = reference

    def is_unwritten(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in such memory."""
        return tensor.untyped_storage()._cdata in self._unwritten


def _weak(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def checkable(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor that can hold a number which is not finite, and can be looked at."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
        return False
    if hasattr(value, "__tensor_flatten__"):  # a DTensor, say: its inner tensors pass by as well
        return False
    return (value.is_floating_point() or value.is_complex()) and value.numel() > 0


def is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite; waits for the device."""
    return bool(torch.isfinite(tensor).all())


def has_nan(tensor: Tensor) -> bool:
    """Whether a value is NaN; waits for the device."""
    return bool(torch.isnan(tensor).any())


def range_of(name: str, tensor: Tensor) -> TensorRange:
    """Read a tensor's range on the host; magnitudes if it is complex."""
    values = (tensor.abs() if tensor.is_complex() else tensor).detach().float()
    finite = values[torch.isfinite(values)]
    low, high = torch.aminmax(finite) if finite.numel() else (torch.tensor(torch.nan),) * 2
    return TensorRange(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        low=low.item(),
        high=high.item(),
        nan=int(values.isnan().sum()),
        posinf=int(values.isposinf().sum()),
        neginf=int(values.isneginf().sum()),
    )
