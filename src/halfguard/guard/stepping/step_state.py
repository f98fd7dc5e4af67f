"""Find what a step changes besides weights and optimizer, and put it back if the step is refused.

At the first step, and again at growing intervals, everything that the loss function can reach is saved before
the step and compared after its backward pass (a *look*). What differs is kept from then on: saved before
every step, and put back before a step is repeated or skipped. Tensors that are written in place are copied by
``Buffers``. What cannot be put back, such as an iterator, is named; then bad steps are skipped, not repeated.

In a loop that keeps its own forward pass, code of the loop runs between forward pass and update, and nobody
can know what of it belongs to the step: there only tensors that modules hold are put back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from math import isfinite
from types import FunctionType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim import Optimizer

from halfguard.dist.wrapping import unwrap_model
from halfguard.guard.look import (
    FORGET_AFTER,
    ComparedTensors,
    Look,
    NamedTensor,
    Schedule,
    name_of_change,
)
from halfguard.guard.step_batches import BatchCopy, StepBatches
from halfguard.guard.stepping.buffers import Buffers
from halfguard.numerics.finite import all_finite
from halfguard.numerics.tensor_rows import is_plain, local_tensor
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import HALF_DTYPES
from halfguard.precision.upcast import cast_to_fp32
from halfguard.step.holders import (
    CellHolder,
    DictHolder,
    FlagsHolder,
    Holder,
    ListHolder,
    Saved,
    is_as,
    restore_changed,
    save_all,
)
from halfguard.step.nested import PLAIN, tensors_in
from halfguard.step.random_state import preserved_generators
from halfguard.step.reach import (
    Reached,
    attributes_and_buffers,
    function_of,
    home_of,
    is_users,
    reach,
)

_NEW_OBJECTS = 200  # that are followed from a new entry of something kept
_WIDEST = 64  # entries of something kept that are followed, half of them the last ones

_MISSING = object()
_modules_added = 0  # to any model of this process


def _count_module(*_: Any) -> None:
    global _modules_added  # noqa: PLW0603 - a hook of torch has no other place
    _modules_added += 1


@functools.cache  # once in a process
def _begin_to_count_modules() -> None:
    register_module_module_registration_hook(_count_module)


class StepState:
    """Saves before each step what the step is known to change, and puts it back."""

    def __init__(
        self, model: nn.Module, buffers: Buffers, optimizers: Sequence[Optimizer] = ()
    ) -> None:
        self._model = model
        self._optimizers = optimizers  # of the guard: they are not changed before the decision
        self._buffers = buffers
        self._function: Callable[..., Any] | None = None  # that computes the loss
        self._is_whole = False  # all that it reaches belongs to the step
        self._schedules: dict[Any, Schedule] = {}  # by function
        self._modules: list[DictHolder] = []  # attributes and buffers of modules, always kept
        self._module_count = -1
        self._modules_added = -1
        self._children: dict[tuple[int, Any], tuple[Any, list[Holder]]] = {}
        # Tensors that Buffers copies because a look asked for it, with the looks that did not reach them.
        self._tracked: list[tuple[dict[Any, Any], Any, int]] = []
        self._paused: Saved = ()
        self._look: Look | None = None
        self._steps = 0
        self.saved: Saved = ()
        self.generators: list[Any] = []  # of the user's own
        self.unrepeatable: list[str] = []  # names of what changed and cannot be put back
        self.changes_batch = False  # seen by a look
        self._unwritten = WeakValueDictionary[int, Tensor]()  # as looks have seen, by identity
        _begin_to_count_modules()

    def expect(self, function: Callable[..., Any], *, whole: bool = True) -> None:
        """Announce the function that computes the next loss.

        If it is ``whole``, nothing else runs in the step, and all that it changes belongs to the step;
        otherwise only its random generators do.
        """
        self._function, self._is_whole = function, whole

    @contextmanager
    def expecting(self, function: Callable[..., Any]) -> Iterator[list[str]]:
        """Run the block as if the function were expected, between two steps.

        In the end, the list has the new names of what the block changed and nobody can put back.
        """
        before = self._function, self._is_whole
        self.expect(function)
        holders = self._reach().holders
        saved = save_all(holder for holder in holders if not holder.restorable)
        names: list[str] = []
        try:
            yield names
        finally:
            lost = (name_of_change(h, was) for h, was in saved if not is_as(h, was))
            names += self.add_unrepeatable(lost)
            self._function, self._is_whole = before

    @property
    def needs_host(self) -> bool:
        """True if the step was seen to write tensors that ``Buffers`` has not copied."""
        return self._look is not None and self._look.has_written

    @property
    def is_looking(self) -> bool:
        """True if the present step is looked at."""
        return self._look is not None

    def keep(self) -> None:
        """Save what the coming step may change."""
        self._look = None
        if self._is_due():
            self._look = self._begin_look()
            self.saved = self._look.saved
        else:
            self.saved = ()
            saved = save_all(self._modules)
            if self._is_whole:
                kept = save_all(chain.from_iterable(s.holders() for s in self._schedules.values()))
                saved += [*kept, *save_all(self._followed(kept))]
            self.saved = saved

    def conclude(self, batches: StepBatches) -> list[str]:
        """Compare after the backward pass, if the step is looked at; return names that cannot be restored."""
        self._steps += 1
        look = self._look
        names = []
        if look is not None and not look.is_done:
            names = self._compare(look, [m.given for m in batches.micro_batches if m.given])
            batches.forget_unneeded_copies()
        batches.unrepeatable = bool(self.unrepeatable)
        return names

    def _compare(self, look: Look, copies: Sequence[BatchCopy]) -> list[str]:
        look.is_done = True
        look.schedule.looked(self._steps)
        for registry, key in look.written():
            look.has_written = True
            place = ({"value": key}, "value") if registry is None else (registry, key)
            self._tracked.append((*place, 0))
            self._buffers.track(*place)
        unwritten = _untracked(look.tensors, self._buffers)
        self._unwritten.update((id(tensor), tensor) for _, tensor, _, _ in unwritten)
        changed_batches = [given for given in copies if given.has_changed()]
        self.changes_batch |= bool(changed_batches)
        if not look.is_whole:
            return []
        changed, lost = look.changed()
        look.schedule.add(changed)
        return self.add_unrepeatable(chain(lost, *(given.lost() for given in copies)))

    def pause(self) -> None:
        """Note what there is after a micro-batch: what changes before the next one is the loop's."""
        self._paused = save_all(holder for holder, _ in self.saved)

    def resume(self) -> None:
        """Leave out of the step what the loop has changed since ``pause``."""
        paused = {id(holder): before for holder, before in self._paused}
        own = (_without_loop(h, before, paused.get(id(h), _MISSING)) for h, before in self.saved)
        self.saved, self._paused = [entry for entry in own if entry is not None], ()
        if self._look is not None:
            self._look.saved = self.saved

    def add_unrepeatable(self, names: Iterable[str]) -> list[str]:
        """Note names of what changed and cannot be put back; return those that are new."""
        new = [name for name in dict.fromkeys(names) if name not in self.unrepeatable]
        self.unrepeatable += new
        return new

    @property
    def _key(self) -> Any:
        function = function_of(self._function)
        return function.__code__ if isinstance(function, FunctionType) else type(function)

    def _is_due(self) -> bool:
        """Return whether to look at the coming step."""
        schedule = self._schedules.get(self._key)
        if schedule is None or self._steps >= schedule.next_look:
            return True
        if self._modules_added == _modules_added:
            return False
        self._modules_added = _modules_added
        return self._module_count != sum(1 for _ in unwrap_model(self._model).modules())

    def _begin_look(self) -> Look:
        modules = dict(unwrap_model(self._model).named_modules())
        self._module_count, self._modules_added = len(modules), _modules_added
        self._modules = [
            holder
            for name, module in modules.items()
            for holder in attributes_and_buffers(f"model.{name}" if name else "model", module)
            if _is_worth_keeping(holder, module)
        ]
        reached = self._reach()
        known = {id(generator) for generator in self.generators}
        self.generators += [g for g in reached.generators if id(g) not in known]
        if not self._is_whole:
            tensors: list[NamedTensor] = [
                ((h.name, h.style, key), value, h.target, key)
                for h in self._modules
                for key, value in h.entries()
                if _is_tensor(value)
            ]
            reached = Reached(list(self._modules), tensors)
        schedule = self._schedules.setdefault(self._key, Schedule())
        schedule.forget({id(holder.target) for holder in reached.holders})
        if self._is_whole:
            schedule.add_assigned(reached.holders)
        self._forget_unreached({id(tensor) for _, tensor, _, _ in reached.tensors})
        untracked = _untracked(reached.tensors, self._buffers)
        return Look(reached.holders, untracked, self._trained(), schedule, is_whole=self._is_whole)

    def _reach(self) -> Reached:
        """Return everything reached, and learning rates and the like: a loss function may step a schedule."""
        reached = reach(self._roots(), closed=self._optimizers)
        groups = chain.from_iterable(optimizer.param_groups for optimizer in self._optimizers)
        own = frozenset({"params"})
        reached.holders.append(FlagsHolder("requires_grad", unwrap_model(self._model)))
        reached.holders += [
            DictHolder(f"param_groups[{index}]", group, left_out=own)
            for index, group in enumerate(groups)
        ]
        return reached

    def _trained(self) -> frozenset[int]:
        """Return the identities of the weights that the guard's optimizers update."""
        if any(isinstance(optimizer, MasterWeights) for optimizer in self._optimizers):
            return frozenset(map(id, self._model.parameters()))
        groups = chain.from_iterable(optimizer.param_groups for optimizer in self._optimizers)
        return frozenset(id(weight) for group in groups for weight in group["params"])

    def _forget_unreached(self, reached: set[int]) -> None:
        """Stop copying tensors that several looks in a row have not reached."""
        kept = []
        for registry, key, looks in self._tracked:
            missed = 0 if id(dict.get(registry, key)) in reached else looks + 1
            if missed < FORGET_AFTER:
                kept.append((registry, key, missed))
            else:
                self._buffers.untrack(registry, key)
        self._tracked = kept

    def _roots(self) -> list[tuple[str, Any]]:
        model = unwrap_model(self._model)
        if self._function is None:
            return [("model", model)]
        function = function_of(self._function)
        name = function.__name__ if isinstance(function, FunctionType) else "loss_fn"
        return [("model", model), (name, self._function)]

    def _followed(self, kept: Saved) -> Iterator[Holder]:
        """Yield holders of what took the place of an entry since the last look."""
        children: dict[tuple[int, Any], tuple[Any, list[Holder]]] = {}
        for holder, saved in kept:
            for key, value in _first_and_last(saved):
                if type(value) in PLAIN or issubclass(type(value), (Tensor, nn.Module, type)):
                    continue
                place = id(holder.target), id(key)
                entry = self._children.get(place)
                if entry is None or entry[0] is not value:
                    found = reach([("", value)], _NEW_OBJECTS, self._optimizers).holders
                    entry = value, [h for h in found if h.restorable]
                children[place] = entry
                yield from entry[1]
        self._children = children

    @torch.no_grad()
    def restore(self, saved: Saved | None = None, *, poisoned_only: bool = False) -> None:
        """Put back what the step changed.

        With ``poisoned_only``, the steps since then may be good, and only what is not finite is put back.
        """
        for holder, before in self.saved if saved is None else saved:
            if not holder.restorable or is_as(holder, before):
                continue
            if self._is_whole and not poisoned_only:
                restore_changed([(holder, before)])
            elif isinstance(holder, DictHolder):
                _restore_tensors(holder, before, poisoned_only=poisoned_only)
        if self._look is not None and saved is None and not poisoned_only:
            self._look.tensors.restore()

    @contextmanager
    def in_fp32(self) -> Iterator[None]:
        """Run the block with 16-bit tensors, such as a hidden state, in float32.

        What the block does not replace is 16-bit again afterwards.
        """
        wide: dict[int, Any] = {}
        narrow: dict[int, Any] = {}
        holders = [holder for holder, _ in self.saved]
        for holder in holders:
            for _, value in islice(_replaceable(holder), _WIDEST):
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
        reached = self._reach()
        saved = save_all(holder for holder in reached.holders if holder.restorable)
        not_copied = self._trained() | frozenset(self._unwritten)
        tensors = ComparedTensors(_untracked(reached.tensors, self._buffers), not_copied)
        copies = [
            (t, t.detach().clone()) for t in self._buffers.tensors() if is_plain(local_tensor(t))
        ]
        try:
            with preserved_generators(reached.generators):
                yield
        finally:
            restore_changed(saved)
            tensors.restore()
            for tensor, copy in copies:
                tensor.data.copy_(copy)


def _without_loop(holder: Holder, before: Any, paused: Any) -> tuple[Holder, Any] | None:
    """Return a saved holder without what has changed since ``paused``; None if nothing is left of it."""
    if paused is _MISSING or is_as(holder, paused):
        return holder, before
    if not (isinstance(holder, DictHolder) and holder.is_namespace):
        return None
    keys = frozenset(before) - frozenset(holder.changed_keys(paused))
    rest = DictHolder(holder.name, holder.target, style=holder.style, keys=keys)
    return rest, {key: before[key] for key in keys}


def _untracked(tensors: Iterable[NamedTensor], buffers: Buffers) -> Iterator[NamedTensor]:
    """Yield the tensors that ``Buffers`` does not copy already."""
    tracked = {id(tensor) for tensor in buffers.tensors()}
    return (named for named in tensors if id(named[1]) not in tracked)


def _is_worth_keeping(holder: DictHolder, module: nn.Module) -> bool:
    """Return whether a module's attributes or buffers are saved before every step."""
    values = [value for _, value in holder.entries()]
    holder.may_hold_graphs = holder.target is vars(module) and any(map(_is_tensor, values))
    is_own = is_users(home_of(module)) and holder.target is vars(module)
    return bool(values) and (is_own or any(map(_holds_tensor, values)))


def _first_and_last(saved: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(saved, dict):
        return islice(saved.items(), _WIDEST)
    if isinstance(saved, list):
        pairs = enumerate(saved[: _WIDEST // 2] + saved[_WIDEST // 2 :][-_WIDEST // 2 :])
        return iter(pairs)
    return iter([(None, saved)] if not isinstance(saved, set) else ())


def _is_half(value: Any) -> bool:
    if not issubclass(type(value), Tensor | tuple) or isinstance(value, nn.Parameter):
        return False
    return any(tensor.dtype in HALF_DTYPES for tensor in tensors_in(value))


def _holds_tensor(value: Any) -> bool:
    if value is None or _is_tensor(value):
        return True
    is_container = issubclass(type(value), tuple | list | dict)
    return is_container and any(True for _ in tensors_in(value))


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), Tensor)  # isinstance raises for a proxy whose object is gone


def _replaceable(holder: Holder) -> Iterator[tuple[Any, Any]]:
    is_plain = isinstance(holder, DictHolder | ListHolder | CellHolder)
    return holder.entries() if is_plain else iter(())


def _swap(holders: Iterable[Holder], replacements: dict[int, Any]) -> None:
    if not replacements:
        return
    for holder in holders:
        for key, value in list(_replaceable(holder)):
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
    changed = holder.changed_keys(before)
    only_tensors = all(_holds_tensor(target.get(key)) for key in changed)
    for key in changed:
        old, new = before.get(key), target.get(key)
        if key not in before or not (_holds_tensor(old) or isinstance(old, float)):
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
