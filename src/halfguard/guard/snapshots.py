"""States to return to: taken now, trusted only after the steps that followed them proved healthy.

A snapshot that is taken a moment before a run goes wrong may already hold what makes it go wrong. So a new
one is a candidate; it replaces the last good one when enough healthy steps have followed. Nothing that is
not finite is ever taken, so nothing that is not finite is ever restored.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halfguard.guard import rng
from halfguard.guard.parts import Stateful
from halfguard.records import write_whole
from halfguard.trace.nesting import tensors_in


class Snapshots:
    """The last good state and, while it is on probation, the next one; in memory or in ``folder``."""

    def __init__(self, parts: Mapping[str, Stateful], folder: Path | None) -> None:
        self._parts = parts
        self._folder = folder
        self._good: tuple[int, Any] | None = None
        self._candidate: tuple[int, Any] | None = None

    @property
    def good_step(self) -> int | None:
        """The step at which the last good state was taken."""
        return None if self._good is None else self._good[0]

    def take(self, step: int, extra: Mapping[str, Any]) -> bool:
        """Take a candidate; False, and nothing taken, if something in it is not finite."""
        state: dict[str, Any] = {name: part.state_dict() for name, part in self._parts.items()}
        state |= {"rng": rng.portable(rng.capture()), "extra": dict(extra)}
        if not all_finite(state):
            return False
        self._forget(self._candidate)
        self._candidate = (step, self._store(step, to_host(state)))
        return True

    def proved(self) -> None:
        """The candidate was followed by enough healthy steps: it is the good one now."""
        if self._candidate is None:
            return
        self._forget(self._good)
        step, held = self._candidate
        if isinstance(held, Path):
            held = held.rename(held.with_name(held.name.replace("candidate", "good")))
        self._good, self._candidate = (step, held), None

    def restore(self) -> dict[str, Any]:
        """Load the good state into the parts it came from; returns what was kept beside it."""
        assert self._good is not None  # noqa: S101 - callers look at good_step first
        self._forget(self._candidate)
        self._candidate = None
        held = self._good[1]
        state = torch.load(held, weights_only=True) if isinstance(held, Path) else to_host(held)
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        rng.restore(state["rng"])
        extra: dict[str, Any] = state["extra"]
        return extra

    def _store(self, step: int, state: dict[str, Any]) -> Any:
        if self._folder is None:
            return state
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{step:09d}.candidate.pt"
        write_whole(path, lambda file: torch.save(state, file))
        return path

    @staticmethod
    def _forget(taken: tuple[int, Any] | None) -> None:
        if taken is not None and isinstance(taken[1], Path):
            with contextlib.suppress(OSError):
                taken[1].unlink()


def all_finite(state: Any) -> bool:
    """Whether every floating-point tensor is finite; one read of the device for all of them."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for _, tensor in tensors_in(state):
        by_kind.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
    largest = [norm for group in by_kind.values() for norm in torch._foreach_norm(group, math.inf)]
    if not largest:
        return True
    # Zero times what is not finite is NaN, in every dtype; a cast to a narrower one could overflow.
    device = largest[0].device
    zeros = [(norm * 0).to(device, torch.float32, non_blocking=True) for norm in largest]
    return bool(torch.stack(zeros).isfinite().all())


def to_host(state: Any) -> Any:
    """A copy of a state whose tensors lie on the host and share nothing with the original."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: to_host(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(to_host(value) for value in state)
    return state
