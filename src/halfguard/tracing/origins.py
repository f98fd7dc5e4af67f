"""The origin of every non-finite number, attached to the storage that holds it.

Numbers move through views, saved tensors and in-place writes. These share the storage, so an origin is
attached to the storage. A storage is held by a weak reference, which also keeps its identity from being
reused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from halfguard.formats import dtype_name
from halfguard.numerics.tensor_rows import iter_parts
from halfguard.records.autopsy import Culprit, TensorRange

# Operations that write a given constant. An infinity from one of them is intended, such as a mask.
FILLS = frozenset({
    "masked_fill", "masked_fill_", "fill", "fill_", "full", "full_like", "new_full", "where",
    "scalar_tensor", "lift_fresh", "lift_fresh_copy", "constant_pad_nd", "index_fill", "index_fill_",
    "scatter", "scatter_",
})  # fmt: skip
# Operations that only move numbers, or choose among numbers that exist.
MOVES = frozenset({
    "clone", "cat", "stack", "index", "gather", "index_select", "embedding", "flip", "repeat",
    "roll", "relu", "relu_", "tril", "triu", "zero_", "zeros", "zeros_like", "new_zeros",
    "max_pool2d_with_indices", "amax", "amin", "topk", "sort", "clamp", "clamp_min", "clamp_max",
    "neg", "abs",
})  # fmt: skip
# Uninitialized memory may hold any number.
UNWRITTEN = frozenset({
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
})  # fmt: skip
# In-place operations that do not read the tensor that they overwrite.
OVERWRITES = frozenset(
    {"copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_"}
)


@dataclass(slots=True)
class Origin:
    """The operation that made a bad number; ``intended`` for an infinity written on purpose."""

    index: int
    intended: bool
    culprit: Culprit


class Origins:
    """The storages that hold non-finite numbers, each with its origin."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[StorageWeakRef, Origin]] = {}
        self._unwritten: dict[int, StorageWeakRef] = {}
        self._count = 0

    def new(self, culprit: Culprit, *, intended: bool = False) -> Origin:
        """Return a new origin, later than all others."""
        self._count += 1
        return Origin(self._count, intended, culprit)

    def put(self, tensor: Tensor, origin: Origin) -> None:
        """Set the origin of the bad numbers of a tensor."""
        reference = _weak(tensor)
        self._of[reference.cdata] = reference, origin
        self._unwritten.pop(reference.cdata, None)

    def get(self, tensor: Tensor) -> Origin | None:
        """Return the origin of the bad numbers of a tensor, if it is known."""
        found = self._of.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[1]

    def clear(self, tensor: Tensor) -> None:
        """Forget the origin of a finite tensor, if it covers its whole storage."""
        storage = tensor.untyped_storage()
        if storage.nbytes() == tensor.numel() * tensor.element_size():
            self._of.pop(storage._cdata, None)
            self._unwritten.pop(storage._cdata, None)

    def mark_unwritten(self, tensor: Tensor) -> None:
        """Mark the storage of a tensor as uninitialized."""
        reference = _weak(tensor)
        self._of.pop(reference.cdata, None)
        self._unwritten[reference.cdata] = reference

    def is_unwritten(self, tensor: Tensor) -> bool:
        """Return whether the storage of a tensor is uninitialized."""
        return tensor.untyped_storage()._cdata in self._unwritten


def _weak(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def can_check(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor that can hold a non-finite number and can be read."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
        return False
    if hasattr(
        value, "__tensor_flatten__"
    ):  # as of a DTensor, whose inner tensors are seen as well
        return False
    return (value.is_floating_point() or value.is_complex()) and value.numel() > 0


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite. This waits for the device."""
    return all(math.isfinite(end) for end in _ends(tensor))


def has_nan(tensor: Tensor) -> bool:
    """Return whether a value is NaN. This waits for the device."""
    return any(math.isnan(end) for end in _ends(tensor))


def _ends(tensor: Tensor) -> list[float]:
    """Return the smallest and the largest value, without a mask of the tensor's size; both NaN if one is."""
    values = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    if values.element_size() == 1:  # no kernel for float8
        values = values.float()
    ends = torch.aminmax(values.detach())
    return torch.stack([ends.min, ends.max]).tolist()  # one read


def measure_range(name: str, tensor: Tensor) -> TensorRange:
    """Read a tensor's range on the host; magnitudes if it is complex."""
    low, high, counts = math.inf, -math.inf, [0, 0, 0]
    for (part,) in iter_parts(tensor.detach()):
        values = (part.abs() if part.is_complex() else part).float()
        finite = values[torch.isfinite(values)]
        if finite.numel():
            ends = [end.item() for end in torch.aminmax(finite)]
            low, high = min(low, ends[0]), max(high, ends[1])
        bad = (values.isnan(), values.isposinf(), values.isneginf())
        counts = [count + int(flags.sum()) for count, flags in zip(counts, bad, strict=True)]
    if low > high:  # nothing is finite
        low = high = math.nan
    return TensorRange(
        name=name,
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor.dtype),
        low=low,
        high=high,
        nan=counts[0],
        posinf=counts[1],
        neginf=counts[2],
    )
