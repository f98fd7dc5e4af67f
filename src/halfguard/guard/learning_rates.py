"""The learning rates of the optimizers: as planned, and cut by rollbacks.

Every scheduler computes the next rate in its own way: from the present rate, from base rates of its own, or
from keys of the parameter groups. None of them knows that a rollback has cut the rate. So the cut is no part
of the schedule: a scheduler sees planned rates while it steps, and the result is multiplied by the cut.

A framework steps its schedulers itself. There the cut is in force only while the optimizer steps, and the
groups hold the planned rates at all other times.

Nothing is done before the first cut. A rate may be a number, a tensor, or None (the optimizer sets its own).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Rate = float | Tensor | None
_Place = tuple[int, int]  # number of the optimizer, number of the group


@dataclass(frozen=True)
class _CutRate:
    """A planned rate, and the rate that was written to the group in its place."""

    planned: Rate
    written: Rate
    version: int | None = None  # of a tensor written in place: compared without a host sync

    def is_current(self, rate: Rate) -> bool:
        """Return whether nobody has changed the rate since it was written."""
        if self.version is not None:
            return (
                rate is self.written and isinstance(rate, Tensor) and rate._version == self.version
            )
        if rate is None or self.written is None:
            return rate is self.written
        return float(rate) == float(self.written)


class LearningRates:
    """The learning rates of optimizers; the guard has the schedulers of those in ``scheduled`` (ids).

    With ``only_in_steps``, the cut is in force only inside ``cut_during_step``.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        scheduled: Set[int] = frozenset(),
        *,
        only_in_steps: bool = False,
    ) -> None:
        self._optimizers, self._scheduled = optimizers, scheduled
        self._only_in_steps = only_in_steps
        self.factor = 1.0  # on the planned rates
        self._cut_rates: dict[_Place, _CutRate] = {}  # empty while the factor is 1

    def planned(self) -> dict[_Place, Rate]:
        """Return the rates without the cut. A rate that somebody changed since then was changed when cut."""
        return {place: self._planned(place, group) for place, group in self._groups()}

    @contextmanager
    def uncut(self, optimizers: Set[int]) -> Iterator[None]:
        """Show the planned rates of these optimizers (ids) in their groups while a scheduler steps."""
        planned = {place: self._planned(place, group) for place, group in self._groups(optimizers)}
        try:
            for place, group in self._groups(optimizers):
                _write(group, planned[place])
            yield
        except BaseException:
            self._cut(planned)
            raise
        self._cut({place: _copy(group.get("lr")) for place, group in self._groups(optimizers)})

    @contextmanager
    def cut_during_step(self, optimizer: Optimizer) -> Iterator[None]:
        """Cut the rates of an optimizer while it steps."""
        if self.factor == 1.0:
            yield
            return
        groups = [group for group in optimizer.param_groups if group.get("lr") is not None]
        planned = [_copy(group["lr"]) for group in groups]
        try:
            for group in groups:
                _write(group, group["lr"] * self.factor)
            yield
        finally:
            for group, rate in zip(groups, planned, strict=True):
                _write(group, rate)

    def roll_back(self, cut: float, before: Mapping[_Place, Rate], kept: Mapping[str, Any]) -> None:
        """Cut the rates that the optimizers got from a snapshot; ``before`` are the planned ones until then.

        A scheduler of the guard was restored with the snapshot, so its plan is the snapshot's. Other rates
        are the user's: the lower one of the snapshot's plan and the present plan holds.
        """
        self.load_state_dict(kept)
        planned = self.planned()
        for place, _ in self._groups({id(o) for o in self._optimizers} - self._scheduled):
            now, then = before.get(place), planned[place]
            if now is not None and then is not None:
                planned[place] = min(now, then)
        self.factor = cut
        self._cut(planned)

    def uncuttable(self) -> list[str]:
        """Return the optimizers with a rate of None."""
        names = {i: type(optimizer).__name__ for i, optimizer in enumerate(self._optimizers)}
        return sorted({names[i] for (i, _), group in self._groups() if group.get("lr") is None})

    def stepped_by_user(self) -> list[str]:
        """Return the optimizers that have a scheduler which the guard does not step."""
        if self._only_in_steps:
            return []
        # Every scheduler of torch that can overwrite a cut adds this key; ReduceLROnPlateau does not.
        return sorted(
            {
                type(optimizer).__name__
                for optimizer in self._optimizers
                if id(optimizer) not in self._scheduled
                and any("initial_lr" in group for group in optimizer.param_groups)
            }
        )

    def state_dict(self) -> dict[str, Any]:
        planned = self.planned() if self._cut_rates else {}
        return {
            "factor": self.factor,
            "planned": [[i, j, rate] for (i, j), rate in planned.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.factor = state["factor"]
        self._cut_rates = {
            (i, j): _CutRate(rate, None if rate is None else rate * self.factor)
            for i, j, rate in state["planned"]
        }

    def _planned(self, place: _Place, group: Mapping[str, Any]) -> Rate:
        rate: Rate = group.get("lr")
        if rate is None or self.factor == 1.0 or self._only_in_steps:
            return _copy(rate)
        known = self._cut_rates.get(place)
        return known.planned if known and known.is_current(rate) else rate / self.factor

    def _cut(self, planned: Mapping[_Place, Rate]) -> None:
        for place, group in self._groups():
            rate = planned.get(place)
            if rate is not None and self._only_in_steps:
                _write(group, rate)
            elif rate is not None:
                _write(group, rate * self.factor)
                written = group["lr"]
                version = written._version if isinstance(written, Tensor) else None
                self._cut_rates[place] = _CutRate(rate, written, version)

    def _groups(self, optimizers: Set[int] | None = None) -> list[tuple[_Place, dict[str, Any]]]:
        return [
            ((i, j), group)
            for i, optimizer in enumerate(self._optimizers)
            if optimizers is None or id(optimizer) in optimizers
            for j, group in enumerate(optimizer.param_groups)
        ]


def _copy(rate: Rate) -> Rate:
    return rate.detach().clone() if isinstance(rate, Tensor) else rate


@torch.no_grad()
def _write(group: dict[str, Any], rate: Rate) -> None:
    present = group.get("lr")
    if rate is None or not isinstance(present, Tensor):
        group["lr"] = float(rate) if isinstance(rate, Tensor) else rate
    elif isinstance(rate, Tensor):  # in place: a compiled or captured step reads this tensor
        present.copy_(rate)
    else:
        present.fill_(rate)
