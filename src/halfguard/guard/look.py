"""A look at one step: everything that was reached before it, to see afterwards what the step has changed.

Version counters do not show which tensors are written in place: batch norm, NumPy and ``.data`` write without
a new version. So checksums are compared. Small tensors are copied as well, so that they can be put back. Of
large ones the checksum covers three parts and the version the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from sys import getrefcount
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.dist.wrapping import is_dtensor
from halfguard.numerics.checksum import checksums
from halfguard.numerics.tensor_rows import is_plain, local_tensor
from halfguard.step.holders import (
    CellHolder,
    DictHolder,
    HistoryHolder,
    Holder,
    Name,
    Saved,
    is_as,
    save_all,
    text_of_name,
)

_COPIED_BYTES = 2**26  # of all tensors together
_LARGE = 2**22  # elements: of a larger tensor, the checksum covers parts of a third of that
_PASSES = 32  # about: the checksums of all tensors take twice the memory of a pass
_SHORTEST_PASS = 2**16  # elements
_LARGEST = 100_000  # entries of a container that is saved before every step
_SMALL = 2**20  # bytes
_LONGEST_INTERVAL = 1024  # steps between two looks
_OURS = 2  # references to an object that nobody else has: the holder's, and the one of the question
FORGET_AFTER = 3  # looks that did not reach it
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
        elements = sum(local_tensor(tensor).numel() for _, tensor, _, _ in self._tensors)
        self._pass = max(elements // _PASSES, _SHORTEST_PASS)
        parts = [_parts(tensor, self._pass) for _, tensor, _, _ in self._tensors]
        self._owners = [position for position, of in enumerate(parts) for _ in of]
        self._sums = checksums(list(chain.from_iterable(parts)), self._pass) if parts else None
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

    def drop_unneeded(self, needed: Iterable[NamedTensor]) -> None:
        """Drop the copies of all others, before a step is repeated."""
        tensors = {id(tensor) for _, tensor, _, _ in needed}
        self._copies = {
            p: copy for p, copy in self._copies.items() if id(self._tensors[p][1]) in tensors
        }

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
        same = (t for p, (_, t, _, _) in enumerate(self._tensors) if p not in moved)
        parts = (_parts(tensor, self._pass) for tensor in same)
        try:
            now = checksums(list(chain.from_iterable(parts)), self._pass)
        except RuntimeError:  # memory that is not there any more: a CUDA graph's output
            return sorted(moved)
        differs = (now != (self._sums[indices] if moved else self._sums)).tolist()
        return sorted(
            moved | {self._owners[i] for i, bad in zip(indices, differs, strict=True) if bad}
        )


class Schedule:
    """When to look at steps of one loss function, and what they are known to change."""

    def __init__(self) -> None:
        self.next_look = 0
        # Intervals grow as Fibonacci's numbers do, so that looks fall on even steps and on odd ones.
        self._interval, self._last = 1, 0
        self._kept: dict[int, tuple[Holder, int]] = {}  # with the looks since it was reached

    def looked(self, steps: int) -> None:
        """Set the next look, counted in steps."""
        self.next_look = steps - 1 + self._interval
        longer = min(self._interval + self._last, _LONGEST_INTERVAL)
        self._interval, self._last = max(longer, 2), self._interval

    def holders(self) -> Iterator[Holder]:
        """Yield what to save before each step; what nobody else refers to is gone."""
        gone = [t for t, (holder, _) in self._kept.items() if getrefcount(holder.target) <= _OURS]
        for target in gone:
            del self._kept[target]
        return (holder for holder, _ in self._kept.values())

    def forget(self, reached: set[int]) -> None:
        """Forget what several looks in a row have not reached."""
        missed = {
            target: (holder, 0 if target in reached else looks + 1)
            for target, (holder, looks) in self._kept.items()
        }
        self._kept = {t: known for t, known in missed.items() if known[1] < FORGET_AFTER}

    def add_assigned(self, reached: Iterable[Holder]) -> None:
        """Keep what the code of the step assigns, at whichever step it does."""
        for holder in reached:
            if isinstance(holder, CellHolder) and holder.is_assigned:
                self._kept.setdefault(id(holder.target), (holder, 0))
            elif isinstance(holder, DictHolder) and holder.assigned_keys:
                self._keep_keys(holder, holder.assigned_keys)

    def _keep_keys(self, holder: DictHolder, keys: frozenset[Any]) -> None:
        known = self._kept.get(id(holder.target), (None, 0))[0]
        if isinstance(known, DictHolder):
            if known.keys is None:
                return  # all of them are kept
            keys |= known.keys
        kept = DictHolder(holder.name, holder.target, style=holder.style, keys=keys)
        kept.may_hold_graphs = True
        self._kept[id(holder.target)] = kept, 0

    def add(self, changed: Iterable[tuple[Holder, Any]]) -> None:
        """Keep what a step has changed: all attributes of an object, since others may change at a later step.

        Of the globals of a module, only those that changed.
        """
        for holder, before in changed:
            kept = holder
            if HistoryHolder.fits(holder.target, before):
                kept = HistoryHolder(holder.name, holder.target)
            elif isinstance(holder, DictHolder) and holder.is_namespace and holder.keys is None:
                holder.may_hold_graphs = True
            elif isinstance(holder, DictHolder) and holder.is_namespace:
                self._keep_keys(holder, frozenset(holder.changed_keys(before)))
                continue
            self._kept[id(holder.target)] = kept, 0


class Look:
    """Everything reached before a step, with copies or checksums, to be compared after it."""

    def __init__(
        self,
        holders: Iterable[Holder],
        tensors: Iterable[NamedTensor],
        trained: frozenset[int],
        schedule: Schedule,
        *,
        is_whole: bool,
    ) -> None:
        self.is_done = self.has_written = False
        self.schedule, self.is_whole = schedule, is_whole
        self.saved: Saved = save_all(holders)
        self.tensors = ComparedTensors(tensors, trained)

    def written(self) -> Iterator[tuple[Any, Any]]:
        """Yield registry and key of the tensors that the step has written in place; None and the tensor.

        What is beside them comes along, if it is a weight or small: a bias whose gradient was 0, and an
        optimizer's moments of it, will be written, too.
        """
        differing = self.tensors.differing()
        self.tensors.drop_unneeded(differing)
        registries = {id(registry) for _, _, registry, _ in differing if registry is not None}
        written = {id(tensor) for _, tensor, _, _ in differing}
        for _, tensor, registry, key in self.tensors:
            is_beside = id(registry) in registries and _is_weight_or_small(tensor)
            if id(tensor) in written or is_beside:
                is_there = registry is not None and dict.get(registry, key) is tensor
                yield (registry, key) if is_there else (None, tensor)

    def changed(self) -> tuple[list[tuple[Holder, Any]], list[str]]:
        """Return what the step changed and can be put back, and the names of what cannot."""
        kept, lost = [], list[str]()
        for holder, before in self.saved:
            if is_as(holder, before):
                continue
            if _can_undo(holder, before):
                kept.append((holder, before))
            else:
                lost.append(name_of_change(holder, before))
        return kept, lost


def _is_weight_or_small(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or tensor.numel() * tensor.element_size() <= _SMALL


def _can_undo(holder: Holder, before: Any) -> bool:
    """Put a holder back and forth again, to see whether it can be done."""
    if not holder.restorable:
        return False
    if isinstance(before, dict | list | set) and len(before) > _LARGEST:
        return HistoryHolder.fits(holder.target, before)
    if type(holder.target) in {dict, list, deque, set}:
        return True  # not tried: a thread may be adding to it
    try:
        after = holder.save()
        try:
            holder.restore(before)
            return holder.is_as(before)
        finally:
            holder.restore(after)
    except Exception:  # noqa: BLE001 - code of the holder's class
        return False


def name_of_change(holder: Holder, before: Any) -> str:
    """Return the name of what a holder has changed."""
    keys = holder.changed_keys(before)
    name: Name = (holder.name, holder.style, keys[0]) if keys else holder.name
    return text_of_name(name)


def _parts(tensor: Tensor, longest: int) -> list[Tensor]:
    part = local_tensor(tensor).detach()
    if not part.is_contiguous():
        return [part]
    flat, length, middle = part.view(-1), _LARGE // 3, part.numel() // 2
    if part.numel() <= _LARGE:
        thirds = [flat]
    else:
        thirds = [flat[:length], flat[middle : middle + length], flat[-length:]]
    return [piece for third in thirds for piece in torch.split(third, longest)]


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    # A write of the same values counts: at another step they may be others.
    return tensor.shape, tensor.stride(), tensor.dtype, tensor._version


def _is_dense(tensor: Tensor) -> bool:
    if type(tensor) not in _KINDS and not is_dtensor(tensor):
        return False
    if tensor.is_meta or tensor.is_inference():
        return False
    part = local_tensor(tensor)
    return part.numel() > 0 and is_plain(part) and part.untyped_storage().nbytes() > 0
