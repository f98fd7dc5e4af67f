"""Snapshots: taken now, trusted only after enough healthy steps have followed.

A snapshot taken just before a run goes wrong may already hold the reason. So a new snapshot is a candidate,
and replaces the last good one after enough healthy steps. A state that is not finite on any rank is never
taken, so nothing that is not finite is ever restored.

A store may also keep the good snapshot before the last. If the last one is damaged, the run loses the steps
between them, and not everything.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from halfguard.dist.collectives import all_agree
from halfguard.errors import RecordError, UsageError
from halfguard.guard.recovery.snapshot_store import SnapshotState, SnapshotStore
from halfguard.guard.scheduler_and_ema import Stateful
from halfguard.numerics.finite import all_finite, has_nan
from halfguard.step.nested import floating_tensors, map_leaves
from halfguard.step.parameters import parameters_of
from halfguard.step.random_state import portable_random_state, restore_random_state


def open_schedulers(state: Any) -> Any:
    """Replace schedulers inside a state by their own states: a scheduler may hold another as an attribute."""
    # Before torch 2.10, SWALR's state has a function, which never changes, and which no store can keep.
    if isinstance(state, dict) and "anneal_func" in state:
        state = {key: value for key, value in state.items() if key != "anneal_func"}
    return map_leaves(
        state, lambda x: open_schedulers(x.state_dict()) if isinstance(x, LRScheduler) else x
    )


def restore_types(kept: Any, live: Any) -> Any:
    """Return a stored state with the container types of the live one.

    A store keeps dicts, lists and tuples. But MultiStepLR counts with a Counter, and a module's extra state
    may be a named tuple. Containers without a live counterpart keep the type that they have.
    """
    if isinstance(kept, dict) and isinstance(live, LRScheduler):
        live.load_state_dict(restore_types(kept, live.state_dict()))
        return live
    if isinstance(kept, dict):
        known = live if isinstance(live, Mapping) else {}
        items = {key: restore_types(item, known.get(key)) for key, item in kept.items()}
        if type(known) is dict or not isinstance(known, MutableMapping):
            return items
        typed = copy.copy(known)  # with what else it holds, such as the factory of a defaultdict
        typed.clear()
        typed.update(items)
        return typed
    if isinstance(kept, list | tuple):
        ordered = live if isinstance(live, list | tuple) else ()
        parts = [
            restore_types(item, ordered[index] if index < len(ordered) else None)
            for index, item in enumerate(kept)
        ]
        if isinstance(kept, list):
            return parts
        if isinstance(live, tuple) and len(live) == len(kept):
            return type(live)(*parts) if hasattr(live, "_fields") else type(live)(parts)
        return type(kept)(*parts) if hasattr(kept, "_fields") else tuple(parts)
    if isinstance(kept, Tensor) and isinstance(live, Tensor) and not kept.dim():
        return kept.to(live.device)  # a learning rate: an optimizer takes the tensor as it is
    return kept


@torch.no_grad()
def restore_buffers(model: nn.Module, kept: Mapping[str, Tensor]) -> None:
    """Restore buffers that are not part of the model's ``state_dict``.

    A buffer whose shape or dtype has changed is a cache that was built again. It stays, because attributes
    that describe it, such as its length, are not rolled back.
    """
    live = dict(model.named_buffers())
    for name, value in kept.items():
        buffer = live.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            continue
        path, _, last = name.rpartition(".")
        try:
            if buffer.layout is not torch.strided or not torch.equal(
                buffer, value.to(buffer.device)
            ):
                buffer.copy_(value)
        except RuntimeError:  # not writable in place: expanded, or made in inference mode
            setattr(model.get_submodule(path), last, value.to(buffer.device))


logger = logging.getLogger("halfguard")


class Snapshots:
    """The last good snapshot, and the candidate that may replace it."""

    def __init__(
        self,
        model: nn.Module,
        parts: Mapping[str, Stateful],
        store: SnapshotStore,
        device: torch.device,
        private: Set[int] = frozenset(),
    ) -> None:
        self._model, self._parts, self._store, self._device = model, parts, store, device
        self._private = private  # ids of parameters that this rank holds alone
        self._good: list[tuple[int, Any]] = []  # the newest first
        self._candidate: tuple[int, Any] | None = None

    @property
    def good_step(self) -> int | None:
        """The step of the last good snapshot."""
        return self._good[0][0] if self._good else None

    def take(self, step: int, extra: Mapping[str, Any], random_state: dict[str, Any]) -> bool:
        """Take a candidate; return False, and take nothing, if anything in it is not finite."""
        state = self._state(extra, random_state)
        buffers = state.own.get("buffers", {})
        checked = {name: part for name, part in state.own.items() if name != "buffers"}
        # Buffers outside the state_dict are often masks, in which infinity is meant.
        finite = all_finite(_tensors((state.shared, checked)))
        finite = finite and not has_nan(_tensors(buffers))
        if not all_agree(finite, self._device):
            return False
        self.drop_candidate()
        held = self._store.save(step, state)
        if held is None:
            self._free_space()
        else:
            self._candidate = (step, held)
        return True

    def confirm(self) -> None:
        """Make the candidate the good snapshot: enough healthy steps have followed it."""
        if self._candidate is None:
            return
        (step, held), self._candidate = self._candidate, None
        if self._store.mark_good(held):
            self._good.insert(0, (step, held))
            self._drop_beyond(self._store.capacity)
        else:
            self._store.discard(held)
            self._free_space()

    def restore(self, prepare: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
        """Load the good snapshot into model and parts; return its extra data.

        ``prepare`` gets these data before weights are loaded, for what they depend on, such as dtypes.
        """
        assert self._good  # noqa: S101 - callers check good_step first
        self.drop_candidate()
        state = self._newest_undamaged()
        if prepare is not None:
            prepare(state.shared["extra"])
        model: Any = {**state.shared["model"], **state.own["model"]}
        self._model.load_state_dict(restore_types(model, self._model.state_dict()))
        restore_buffers(self._model, state.own.get("buffers", {}))
        for name, part in self._parts.items():
            kept = state.shared[name]
            if name in state.own:
                kept["state"] |= state.own[name]
            part.load_state_dict(restore_types(kept, part.state_dict()))
        if "rng" in state.own:
            restore_random_state(state.own["rng"])
        extra: dict[str, Any] = state.shared["extra"]
        return extra

    def adopt(self, *, at_most: int | None = None) -> bool:
        """Use the good snapshots of an earlier run; return whether there are any.

        A run at step ``at_most`` raises for snapshots of later steps: another run took them. One of the same
        step is removed, since it is about to be taken again.
        """
        self._good = self._store.good()
        if self.good_step is not None and self.good_step == at_most:
            self._forget(self._good.pop(0))
        self._drop_beyond(self._store.capacity)
        if self.good_step is None or at_most is None or self.good_step < at_most:
            return self.good_step is not None
        raise UsageError(
            f"run_dir contains a snapshot from step {self.good_step} of an earlier run, but this run is at "
            f"step {at_most}.",
            cure="Call guard.resume() before the first step to continue from it, or choose another run_dir.",
        )

    def drop_candidate(self) -> None:
        """Remove the candidate, if there is one."""
        self._forget(self._candidate)
        self._candidate = None

    def close(self) -> None:
        """Drop the candidate, and let another guard use the store."""
        self.drop_candidate()
        self._store.close()

    def _newest_undamaged(self) -> SnapshotState:
        """Load the good snapshot or, if it is damaged, the one before; all ranks load the same."""
        (step, held), *earlier = self._good
        try:
            return self._store.load(held)
        except RecordError as error:
            if not earlier:
                raise
            logger.warning(
                "the snapshot of step %d is damaged, so the guard rolls back to step %d: %s",
                step,
                earlier[0][0],
                error.message,
            )
        self._good = earlier
        state = self._newest_undamaged()
        self._store.set_aside(held)
        return state

    def _free_space(self) -> None:
        """Drop spare snapshots after a failed write: the disk may be full."""
        self._drop_beyond(1)

    def _drop_beyond(self, count: int) -> None:
        for spare in self._good[count:]:
            self._forget(spare)
        del self._good[count:]

    def _state(self, extra: Mapping[str, Any], random_state: dict[str, Any]) -> SnapshotState:
        model = self._model.state_dict()
        # Running statistics, experts and stages belong to each rank; the rest is the same on all ranks,
        # or sharded over them.
        mine = {name for name, _ in self._model.named_buffers()}
        mine |= {name for name, p in self._model.named_parameters() if id(p) in self._private}
        own: dict[str, Any] = {
            "rng": portable_random_state(random_state),
            "model": {name: model.pop(name) for name in sorted(mine & model.keys())},
        }
        transient = {
            name: buffer
            for name, buffer in self._model.named_buffers()
            if name not in model and name not in own["model"] and not buffer.is_meta
        }
        if transient:
            own["buffers"] = transient
        shared = {name: open_schedulers(part.state_dict()) for name, part in self._parts.items()}
        for name, part in self._parts.items():
            if isinstance(part, Optimizer) and self._private:
                numbers = [n for n, p in enumerate(parameters_of(part)) if id(p) in self._private]
                moments = shared[name]["state"]
                own[name] = {number: moments.pop(number) for number in numbers if number in moments}
        return SnapshotState({"model": dict(model), **shared, "extra": dict(extra)}, own)

    def _forget(self, taken: tuple[int, Any] | None) -> None:
        if taken is not None:
            self._store.discard(taken[1])


def _tensors(state: Any) -> Iterator[Tensor]:
    return (tensor for _, tensor in floating_tensors(state))
