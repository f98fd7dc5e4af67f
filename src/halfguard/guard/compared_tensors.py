"""Tensors as they are before a step, to see which of them the step writes in place.

Version counters do not show it: batch norm, NumPy and ``.data`` write without a new version. So checksums are
compared. Small tensors are copied as well, so that they can be put back. Of large ones the checksum covers
three parts and the version the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from torch import Tensor, nn

from halfguard.dist.wrapping import is_dtensor, local_tensor
from halfguard.numerics.checksum import checksums
from halfguard.numerics.tensor_rows import is_plain
from halfguard.step.holders import Name

_COPIED_BYTES = 2**26  # of all tensors together
_LARGE = 2**22  # elements: of a larger tensor, the checksum covers parts of a third of that
_KINDS = (Tensor, nn.Parameter, nn.Buffer)

NamedTensor = tuple[Name, Tensor, Any, Any]  # with its place: a dict and a key, or None and None


class ComparedTensors:
    """Tensors with checksums, and copies of all but those in ``not_copied``, within ``room`` bytes."""

    def __init__(
        self,
        tensors: Iterable[NamedTensor],
        not_copied: frozenset[int] = frozenset(),
        room: int = _COPIED_BYTES,
    ) -> None:
        self._tensors = [named for named in tensors if _is_dense(named[1])]
        self._before = [_layout(tensor) for _, tensor, _, _ in self._tensors]
        parts = [_parts(tensor) for _, tensor, _, _ in self._tensors]
        self._owners = [position for position, of in enumerate(parts) for _ in of]
        self._sums = checksums(list(chain.from_iterable(parts))) if parts else None
        self._copies: dict[int, Tensor] = {}
        for position, (_, tensor, _, _) in enumerate(self._tensors):
            size = tensor.numel() * tensor.element_size()
            if id(tensor) not in not_copied and size <= room:
                self._copies[position] = tensor.detach().clone()
                room -= size

    @property
    def is_complete(self) -> bool:
        """True if every tensor was copied."""
        return len(self._copies) == len(self._tensors)

    def __iter__(self) -> Iterator[NamedTensor]:
        return iter(self._tensors)

    def differing(self) -> list[NamedTensor]:
        """Return the tensors that have changed. This reads the device once."""
        return [self._tensors[position] for position in self._positions()]

    def restore(self) -> None:
        """Put back those that have changed and were copied."""
        for position in self._positions() if self._copies else ():
            copy, tensor = self._copies.get(position), self._tensors[position][1]
            if copy is None:
                continue
            if tensor.shape == copy.shape and is_plain(local_tensor(tensor)):
                tensor.data.copy_(copy)
            else:
                tensor.data = copy.clone()

    def _positions(self) -> list[int]:
        layouts = [_layout(tensor) for _, tensor, _, _ in self._tensors]
        moved = {
            p for p, (now, old) in enumerate(zip(layouts, self._before, strict=True)) if now != old
        }
        indices = [i for i, owner in enumerate(self._owners) if owner not in moved]
        if not indices or self._sums is None:
            return sorted(moved)
        parts = (_parts(t) for p, (_, t, _, _) in enumerate(self._tensors) if p not in moved)
        try:
            now = checksums(list(chain.from_iterable(parts)))
        except RuntimeError:  # memory that is not there any more: a CUDA graph's output
            return sorted(moved)
        differs = (now != (self._sums[indices] if moved else self._sums)).tolist()
        return sorted(
            moved | {self._owners[i] for i, bad in zip(indices, differs, strict=True) if bad}
        )


def _parts(tensor: Tensor) -> list[Tensor]:
    part = local_tensor(tensor).detach()
    if part.numel() <= _LARGE or not part.is_contiguous():
        return [part]
    flat, length = part.view(-1), _LARGE // 3
    middle = part.numel() // 2
    return [flat[:length], flat[middle : middle + length], flat[-length:]]


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    # Small tensors are compared by their bits alone: a write of the same values changes nothing.
    version = tensor._version if tensor.numel() > _LARGE else 0
    return tensor.shape, tensor.stride(), tensor.dtype, version


def _is_dense(tensor: Tensor) -> bool:
    if type(tensor) not in _KINDS and not is_dtensor(tensor):
        return False
    if tensor.is_meta or tensor.is_inference():
        return False
    part = local_tensor(tensor)
    return part.numel() > 0 and is_plain(part) and part.untyped_storage().nbytes() > 0
