"""A copy of a batch, for loss functions that change theirs: a repeat must see the batch as it was given.

The batch itself is put back, not replaced: it may be a view of data that later batches share.
"""

from __future__ import annotations

from typing import Any

from halfguard.guard.compared_tensors import ComparedTensors
from halfguard.step.holders import is_as, restore_changed, save_all, text_of_name
from halfguard.step.reach import reach

_COPIED_BYTES = 2**29


class BatchCopy:
    """What a batch held before its forward pass."""

    def __init__(self, batch: Any, copied_anyway: frozenset[int] = frozenset()) -> None:
        reached = reach([("batch", batch)])
        self._batch = batch
        self._copied_anyway = copied_anyway  # identities of containers
        self._saved = save_all(reached.holders)
        self._tensors = ComparedTensors(reached.tensors, room=_COPIED_BYTES)

    @property
    def is_complete(self) -> bool:
        """True if all of it was copied; a batch may hold a whole data set."""
        return self._tensors.is_complete

    def has_changed(self) -> bool:
        """Return whether more than the containers changed that are copied anyway. This reads the device."""
        if self._tensors.differing():
            return True
        return any(
            id(holder.target) not in self._copied_anyway and not is_as(holder, before)
            for holder, before in self._saved
        )

    def lost(self) -> list[str]:
        """Return the names of parts that changed and cannot be put back: iterators."""
        parts = ((h, before) for h, before in self._saved if not h.restorable)
        return [text_of_name(holder.name) for holder, before in parts if not is_as(holder, before)]

    def restore(self) -> None:
        """Put the batch back."""
        restore_changed(self._saved)
        self._tensors.restore()

    def now(self) -> BatchCopy:
        """Return a copy of the batch as it is now."""
        return BatchCopy(self._batch, self._copied_anyway)
