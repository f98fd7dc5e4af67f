"""States to return to: taken now, trusted only after the steps that followed them proved healthy.

A snapshot that is taken a moment before a run goes wrong may already hold what makes it go wrong. So a new
one is a candidate; it replaces the last good one when enough healthy steps have followed. Nothing that is
not finite, on any rank, is ever taken, so nothing that is not finite is ever restored.

A store may keep the good one before the last as well. Should the last one turn out to be damaged, that costs
the steps between them, not the run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.dist.collectives import all_agree
from halfguard.dist.wrapping import local
from halfguard.errors import RecordError, UsageError
from halfguard.guard.protocols import Stateful, parameters_of
from halfguard.guard.recovery.snapshot_store import State, Store
from halfguard.step.random_state import portable_random_state, restore_random_state
from halfguard.tracing.nesting import tensors_in

logger = logging.getLogger("halfguard")


class Snapshots:
    """The last good state and, while it is on probation, the next one."""

    def __init__(
        self,
        model: nn.Module,
        parts: Mapping[str, Stateful],
        store: Store,
        device: torch.device,
        private: Set[int] = frozenset(),
    ) -> None:
        self._model, self._parts, self._store, self._device = model, parts, store, device
        self._private = private  # ids of parameters that this rank holds alone
        self._good: list[tuple[int, Any]] = []  # the newest first
        self._candidate: tuple[int, Any] | None = None

    @property
    def good_step(self) -> int | None:
        """The step at which the last good state was taken."""
        return self._good[0][0] if self._good else None

    def take(self, step: int, extra: Mapping[str, Any], random_state: dict[str, Any]) -> bool:
        """Take a candidate; False, and nothing taken, if something in it is not finite."""
        state = self._state(extra, random_state)
        if not all_agree(all_finite((state.shared, state.own)), self._device):
            return False
        self.drop_candidate()
        held = self._store.save(step, state)
        if held is None:
            self._make_room()
        else:
            self._candidate = (step, held)
        return True

    def proved(self) -> None:
        """The candidate was followed by enough healthy steps: it is the good one now."""
        if self._candidate is None:
            return
        (step, held), self._candidate = self._candidate, None
        if self._store.mark_good(held):
            self._good.insert(0, (step, held))
            self._let_go_beyond(self._store.keeps)
        else:
            self._store.forget(held)
            self._make_room()

    def restore(self) -> dict[str, Any]:
        """Load the good state into the parts it came from; returns what was kept beside it."""
        assert self._good  # noqa: S101 - callers look at good_step first
        self.drop_candidate()
        state = self._newest_undamaged()
        model: Any = {**state.shared["model"], **state.own["model"]}
        self._model.load_state_dict(model)
        for name, part in self._parts.items():
            kept = state.shared[name]
            if name in state.own:
                kept["state"] |= state.own[name]
            part.load_state_dict(kept)
        if "rng" in state.own:
            restore_random_state(state.own["rng"])
        extra: dict[str, Any] = state.shared["extra"]
        return extra

    def adopt(self, *, at_most: int | None = None) -> bool:
        """Take over the last good snapshot of an earlier run, if there is one.

        A run that is already ``at_most`` so far has no use for one from later steps: it must not be
        mistaken for its own. One from the very same step is about to be taken anew.
        """
        self._good = self._store.good()
        if self.good_step is not None and self.good_step == at_most:
            self._forget(self._good.pop(0))
        self._let_go_beyond(self._store.keeps)
        if self.good_step is None or at_most is None or self.good_step < at_most:
            return self.good_step is not None
        raise UsageError(
            f"run_dir holds a snapshot of step {self.good_step} of an earlier run, and this one is at "
            f"step {at_most}.",
            cure="Call guard.resume() before the first step to go on from it, or choose another run_dir.",
        )

    def drop_candidate(self) -> None:
        """Give up the snapshot that is on probation, if there is one."""
        self._forget(self._candidate)
        self._candidate = None

    def _newest_undamaged(self) -> State:
        """Read the good state, or else the one before it; all ranks the same."""
        (step, held), *earlier = self._good
        try:
            return self._store.load(held)
        except RecordError as error:
            if not earlier:
                raise
            logger.warning(
                "going back beyond step %d, to %d: %s", step, earlier[0][0], error.message
            )
        self._good = earlier
        state = self._newest_undamaged()
        self._store.set_aside(held)
        return state

    def _make_room(self) -> None:
        """Nothing could be written: what is spare may be what the next one lacks room for."""
        self._let_go_beyond(1)

    def _let_go_beyond(self, count: int) -> None:
        for spare in self._good[count:]:
            self._forget(spare)
        del self._good[count:]

    def _state(self, extra: Mapping[str, Any], random_state: dict[str, Any]) -> State:
        model = self._model.state_dict()
        # Running statistics belong to each rank, as do experts and stages; the rest is the same on
        # all ranks, or spread over them.
        mine = {name for name, _ in self._model.named_buffers()}
        mine |= {name for name, p in self._model.named_parameters() if id(p) in self._private}
        own: dict[str, Any] = {
            "rng": portable_random_state(random_state),
            "model": {name: model.pop(name) for name in sorted(mine & model.keys())},
        }
        shared = {name: part.state_dict() for name, part in self._parts.items()}
        for name, part in self._parts.items():
            if isinstance(part, Optimizer) and self._private:
                numbers = [n for n, p in enumerate(parameters_of(part)) if id(p) in self._private]
                moments = shared[name]["state"]
                own[name] = {number: moments.pop(number) for number in numbers if number in moments}
        return State({"model": dict(model), **shared, "extra": dict(extra)}, own)

    def _forget(self, taken: tuple[int, Any] | None) -> None:
        if taken is not None:
            self._store.forget(taken[1])


def all_finite(state: Any) -> bool:
    """Whether every floating-point tensor here is finite; one read of the device for all of them."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for _, tensor in tensors_in(state):
        part = local(tensor.detach())
        if part.itemsize == 1:
            part = part.to(torch.bfloat16)  # float8, of which torch takes no norm
        if part.numel():
            by_kind.setdefault((part.device, part.dtype), []).append(part)
    largest = [norm for group in by_kind.values() for norm in torch._foreach_norm(group, math.inf)]
    if not largest:
        return True
    # Zero times what is not finite is NaN, in every dtype; a cast to a narrower one could overflow.
    device = largest[0].device
    zeros = [(norm * 0).to(device, torch.float32, non_blocking=True) for norm in largest]
    return bool(torch.stack(zeros).isfinite().all())
