"""Find what a step changes besides weights and optimizer, and put it back if the step is refused.

At the first step, and again at growing intervals, everything that the loss function can reach is saved before
the step and compared after its backward pass (a *look*). What differs is kept from then on: saved before
every step, and put back before a step is repeated or skipped. Tensors that are written in place are copied by
``Buffers``. What cannot be put back, such as an iterator, is named; then bad steps are skipped, not repeated.

In a loop that keeps its own forward pass, code of the loop runs between forward pass and update, and nobody
can know what of it belongs to the step: there only tensors that modules hold are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.dist.wrapping import local_tensor, unwrap_model
from halfguard.guard.stepping.buffers import Buffers, is_plain
from halfguard.numerics.checksum import checksums
from halfguard.numerics.finite import all_finite
from halfguard.precision.islands import cast_to_fp32
from halfguard.precision.modes import HALF_DTYPES
from halfguard.step.holders import CellHolder, DictHolder, Holder, ListHolder
from halfguard.step.nested import PLAIN, tensors_in
from halfguard.step.random_state import preserved_generators
from halfguard.step.reach import Reached, attributes_and_buffers, is_users, reach

_LONGEST_INTERVAL = 1024  # steps between two looks
_COPIED_BYTES = 2**26  # of tensors, at a look; of larger ones only a checksum
_NEW_OBJECTS = 200  # that are followed from a new entry of something kept
_WIDEST = 64  # entries of something kept that are followed

Saved = Sequence[tuple[Holder, Any]]


class StepState:
    """Saves before each step what the step is known to change, and puts it back."""

    def __init__(self, model: nn.Module, buffers: Buffers, *, enabled: bool) -> None:
        self._model = model
        self._buffers = buffers
        self._enabled = enabled
        self._function: Callable[..., Any] | None = None  # that computes the loss
        self._is_whole = False  # all that it reaches belongs to the step
        self._batch: Any = None
        self._steps = 0
        self._next_look = 0
        self._interval = 1
        self._looks: dict[Any, dict[int, Holder]] = {}  # by function: holders that steps change
        self._modules: list[DictHolder] = []  # attributes and buffers of modules, always kept
        self._children: dict[tuple[int, Any], tuple[Any, list[Holder]]] = {}
        self._look: _Look | None = None
        self._own: dict[int, Any] = {}
        self.saved: Saved = ()
        self.generators: list[Any] = []  # of the user's own
        self.unrepeatable: list[str] = []  # names of what changed and cannot be put back
        self.changes_batch = False

    def expect(
        self, function: Callable[..., Any], batch: Any = None, *, whole: bool = True
    ) -> None:
        """Announce the function that computes the next loss, and its batch.

        If it is ``whole``, nothing else runs in the step, and all that it changes belongs to the step;
        otherwise only its random generators do.
        """
        self._function, self._batch, self._is_whole = function, batch, whole

    @property
    def _key(self) -> Any:
        function = getattr(self._function, "__func__", self._function)
        return getattr(function, "__code__", None) or type(function)

    def has_copy_of(self, batch: Any) -> bool:
        """Return whether a batch is looked at in this step, and can be put back."""
        return self._look is not None and batch is not None and self._batch is batch

    def keep(self) -> None:
        """Save what the coming step may change."""
        if not self._enabled:
            return
        self._look = None
        if self._is_due():
            self._look = self._begin_look()
            self.saved = self._look.saved
        else:
            known = [h for by_target in self._looks.values() for h in by_target.values()]
            holders = [*known, *self._followed(known)] if self._is_whole else []
            self.saved = [(h, h.save()) for h in (*self._modules, *holders)]

    def conclude(self) -> list[str]:
        """Compare after the backward pass, if the step is looked at; return names that cannot be put back."""
        self._steps += 1
        self._batch = None
        look = self._look
        if look is None or look.is_done:
            return []
        look.is_done = True
        self._interval = 1 if look.is_first else min(2 * self._interval, _LONGEST_INTERVAL)
        self._next_look = self._steps - 1 + self._interval
        for registry, key in look.written():
            self._buffers.track(registry, key)
        if not self._is_whole:
            return []
        self.changes_batch |= look.changed_batch()
        changed, fixed = look.changed()
        self._looks[self._key] |= {id(holder.target): holder for holder in changed}
        new = [name for name in dict.fromkeys(fixed) if name not in self.unrepeatable]
        self.unrepeatable += new
        return new

    def _begin_look(self) -> _Look:
        model = unwrap_model(self._model)
        self._modules = [
            holder
            for name, module in model.named_modules()
            for holder in attributes_and_buffers(f"model.{name}" if name else "model", module)
            if is_users(type(module).__module__) or any(map(_holds_tensor, holder.save().values()))
        ]
        self._own = {id(module): module for module in model.modules()}
        is_first = self._key not in self._looks
        reached = reach(self._roots())
        if not self._is_whole:
            reached.holders = list(self._modules)
        now = {id(holder.target) for holder in reached.holders}
        before = self._looks.get(self._key, {})
        self._looks[self._key] = {target: h for target, h in before.items() if target in now}
        known = {id(generator) for generator in self.generators}
        self.generators += [g for g in reached.generators if id(g) not in known]
        batch = reach([("batch", self._batch)]) if self._batch is not None else Reached()
        return _Look(reached, batch, self._buffers, is_first=is_first)

    def _is_due(self) -> bool:
        """Return whether to look at the coming step."""
        if self._steps >= self._next_look or self._key not in self._looks:
            return True
        # A module was added: a cheap count, not a comparison.
        return len(self._own) != sum(1 for _ in unwrap_model(self._model).modules())

    def _roots(self) -> list[tuple[str, Any]]:
        model = unwrap_model(self._model)
        if self._function is None:
            return [("model", model)]
        return [("model", model), (getattr(self._function, "__name__", "loss_fn"), self._function)]

    def _followed(self, known: list[Holder]) -> Iterator[Holder]:
        """Yield holders of what took the place of an entry since the last look."""
        children: dict[tuple[int, Any], tuple[Any, list[Holder]]] = {}
        for holder in known:
            for name, key, value in islice(holder.entries(), _WIDEST):
                if type(value) in PLAIN or isinstance(value, (Tensor, nn.Module, type)):
                    continue
                place = id(holder.target), key
                entry = self._children.get(place)
                if entry is None or entry[0] is not value:
                    entry = value, reach([(name, value)], _NEW_OBJECTS).holders
                children[place] = entry
                yield from entry[1]
        self._children = children

    @torch.no_grad()
    def restore(self, saved: Saved | None = None, *, poisoned_only: bool = False) -> None:
        """Put back what the step changed.

        With ``poisoned_only``, the steps since then may be good, and only what is not finite is put back.
        """
        for holder, before in self.saved if saved is None else saved:
            if not holder.restorable or holder.is_as(before):
                continue
            if self._is_whole and not poisoned_only:
                holder.restore(before)
            elif isinstance(holder, DictHolder):
                _restore_tensors(holder, before, poisoned_only=poisoned_only)
        if self._look is not None and saved is None and not poisoned_only:
            self._look.restore_tensors()

    @contextmanager
    def in_fp32(self) -> Iterator[None]:
        """Run the block with 16-bit tensors, such as a hidden state, in float32.

        What the block does not replace is 16-bit again afterwards.
        """
        wide: dict[int, Any] = {}
        narrow: dict[int, Any] = {}
        holders = [holder for holder, _ in self.saved]
        for holder in holders:
            for _, _, value in islice(_entries(holder), _WIDEST):
                if _is_half(value):
                    cast = wide.setdefault(id(value), cast_to_fp32(value))
                    narrow[id(cast)] = value
        try:
            _swap(holders, wide)
            yield
        finally:
            _swap(holders, narrow)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Put back after the block everything that the model and the loss function can reach."""
        reached = reach(self._roots())
        saved = [(holder, holder.save()) for holder in reached.holders if holder.restorable]
        tensors = [(t, t.detach().clone()) for _, t, _, _ in reached.tensors if _is_small_state(t)]
        tensors += [(t, t.detach().clone()) for t in self._buffers.tensors()]
        try:
            with preserved_generators(reached.generators):
                yield
        finally:
            for holder, before in saved:
                if not holder.is_as(before):
                    holder.restore(before)
            for tensor, copy in tensors:
                tensor.data.copy_(copy)  # all: batch_norm changes statistics without a new version


class _Look:
    """Everything reached before a step, with copies or checksums, to be compared after it."""

    def __init__(
        self, reached: Reached, batch: Reached, buffers: Buffers, *, is_first: bool
    ) -> None:
        self.is_first = is_first
        self.is_done = False
        self.saved: Saved = [(holder, holder.save()) for holder in reached.holders]
        self._batch_saved: Saved = [(holder, holder.save()) for holder in batch.holders]
        tracked = {id(tensor) for tensor in buffers.tensors()}
        usable = [t for t in reached.tensors if id(t[1]) not in tracked and _is_dense(t[1])]
        self._tensors = usable
        self._of_batch = [t for t in batch.tensors if _is_dense(t[1])]
        self._sums = _sums([*usable, *self._of_batch])
        self._copies: list[tuple[Tensor, Tensor]] = []
        room = _COPIED_BYTES
        for _, tensor, _, _ in (*usable, *self._of_batch):
            size = tensor.numel() * tensor.element_size()
            if not (isinstance(tensor, nn.Parameter) and tensor.requires_grad) and size <= room:
                self._copies.append((tensor, tensor.detach().clone()))
                room -= size
        self._changed_tensors: list[int] | None = None

    def _differing(self) -> list[int]:
        """Return the positions of tensors whose bits changed. This reads the device once."""
        if self._changed_tensors is None:
            after = _sums([*self._tensors, *self._of_batch])
            differs = [] if self._sums is None or after is None else (after != self._sums).tolist()
            self._changed_tensors = [position for position, bad in enumerate(differs) if bad]
        return self._changed_tensors

    def written(self) -> Iterator[tuple[Any, Any]]:
        """Yield registry and key of the tensors that the step has written in place."""
        for position in self._differing():
            if position < len(self._tensors):
                _, tensor, registry, key = self._tensors[position]
                is_there = registry is not None and registry.get(key) is tensor
                yield (registry, key) if is_there else ({"value": tensor}, "value")

    def changed_batch(self) -> bool:
        """Return whether the loss function has changed its batch."""
        if any(position >= len(self._tensors) for position in self._differing()):
            return True
        return any(not holder.is_as(before) for holder, before in self._batch_saved)

    def changed(self) -> tuple[list[Holder], list[str]]:
        """Return the holders that the step changed, and the names of those that cannot be put back."""
        changed = [(holder, before) for holder, before in self.saved if not holder.is_as(before)]
        lost = [
            holder.first_change(before)
            for holder, before in changed
            if not _can_undo(holder, before)
        ]
        lost += [
            h.name for h, before in self._batch_saved if not h.restorable and not h.is_as(before)
        ]
        return [holder for holder, _ in changed if holder.restorable], lost

    def restore_tensors(self) -> None:
        for tensor, copy in self._copies:
            tensor.data.copy_(copy)
        for holder, before in self._batch_saved:
            if holder.restorable and not holder.is_as(before):
                holder.restore(before)


def _can_undo(holder: Holder, before: Any) -> bool:
    """Put a holder back and forth again, to see whether it can be done."""
    if not holder.restorable:
        return False
    after = holder.save()
    try:
        holder.restore(before)
        return holder.is_as(before)
    except Exception:  # noqa: BLE001 - code of the holder's class
        return False
    finally:
        holder.restore(after)


def _sums(tensors: Sequence[tuple[str, Tensor, Any, Any]]) -> Tensor | None:
    return checksums([tensor.detach() for _, tensor, _, _ in tensors]) if tensors else None


def _is_dense(tensor: Tensor) -> bool:
    if tensor.is_meta or tensor.is_complex() or tensor.is_inference():
        return False
    part = local_tensor(tensor)
    return part.numel() > 0 and is_plain(part)


def _is_small_state(tensor: Tensor) -> bool:
    is_trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
    return _is_dense(tensor) and not is_trained and tensor.numel() * tensor.element_size() <= 2**20


def _is_half(value: Any) -> bool:
    if not isinstance(value, Tensor | tuple) or isinstance(value, nn.Parameter):
        return False
    return any(tensor.dtype in HALF_DTYPES for tensor in tensors_in(value))


def _holds_tensor(value: Any) -> bool:
    return value is None or any(True for _ in tensors_in(value))


def _entries(holder: Holder) -> Iterator[tuple[str, Any, Any]]:
    is_plain = isinstance(holder, DictHolder | ListHolder | CellHolder)
    return holder.entries() if is_plain else iter(())


def _swap(holders: Iterable[Holder], replacements: dict[int, Any]) -> None:
    if not replacements:
        return
    for holder in holders:
        for _, key, value in list(_entries(holder)):
            if id(value) in replacements:
                if isinstance(holder, CellHolder):
                    holder.target.cell_contents = replacements[id(value)]
                else:
                    holder.target[key] = replacements[id(value)]


def _restore_tensors(holder: DictHolder, before: dict[Any, Any], *, poisoned_only: bool) -> None:
    """Put back the tensors that were replaced; one of another shape only if it is not finite.

    A cache that grew in the forward pass stays: other attributes may state its size.
    """
    target = holder.target
    now = holder.save()
    only_tensors = all(_holds_tensor(v) for k, v in now.items() if v is not before.get(k))
    for key, old in before.items():
        new = target.get(key)
        if new is old or not (_holds_tensor(old) or isinstance(old, float)):
            continue
        same = only_tensors if old is None else _has_same_shapes(old, new)
        if (same and not poisoned_only) or _became_bad(old, new):
            target[key] = old


def _has_same_shapes(old: Any, new: Any) -> bool:
    shapes = [tensor.shape for tensor in tensors_in(old)]
    return bool(shapes) and shapes == [tensor.shape for tensor in tensors_in(new)]


def _became_bad(old: Any, new: Any) -> bool:
    """Return whether only the new value is not finite. This reads the device; only bad steps need it."""
    if isinstance(old, float) and isinstance(new, float):
        return isfinite(old) and not isfinite(new)
    return all_finite(tensors_in(old)) and not all_finite(tensors_in(new))
