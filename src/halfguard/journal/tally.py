"""Counts of what became of the steps, for the present epoch and for the whole run.

One idea: a step is counted once, in the epoch; the run is the finished epochs plus the present one.
Every counted step is in exactly one of three places, so ``applied + skipped + rollbacks == steps``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from halfguard.errors import RecordError, UsageError
from halfguard.records import Action, Cause, Summary

_APPLIED = (Action.APPLY, Action.RETRY)


class _Counts:
    """The fields of a ``Summary``, open to counting."""

    __slots__ = (
        "applied", "norm_max", "norm_min", "reductions", "retried", "rollbacks", "skipped", "steps"
    )  # fmt: skip

    def __init__(self, start: Summary) -> None:
        self.steps = start.steps
        self.applied = start.applied
        self.retried = start.retried
        self.skipped = dict(start.skipped)
        self.rollbacks = start.rollbacks
        self.reductions = start.scale_reductions
        self.norm_min = start.grad_norm_min
        self.norm_max = start.grad_norm_max

    def summary(self, epoch: int | None, scale: float) -> Summary:
        return Summary(
            epoch=epoch,
            steps=self.steps,
            applied=self.applied,
            retried=self.retried,
            skipped=self.skipped,
            rollbacks=self.rollbacks,
            scale=scale,
            scale_reductions=self.reductions,
            grad_norm_min=self.norm_min,
            grad_norm_max=self.norm_max,
        )

    def __add__(self, other: _Counts) -> _Counts:
        both = _Counts(Summary())
        both.steps = self.steps + other.steps
        both.applied = self.applied + other.applied
        both.retried = self.retried + other.retried
        both.skipped = dict(Counter(self.skipped) + Counter(other.skipped))
        both.rollbacks = self.rollbacks + other.rollbacks
        both.reductions = self.reductions + other.reductions
        both.norm_min = min(self.norm_min, other.norm_min)
        both.norm_max = max(self.norm_max, other.norm_max)
        return both


class Tally:
    """Counts steps; it performs no I/O and its state is plain JSON."""

    def __init__(self) -> None:
        self._finished = _Counts(Summary())
        self._epoch = _Counts(Summary())
        self._scale: float | None = None

    def add(self, action: Action, cause: Cause | None, grad_norm: float, scale: float) -> None:
        """Count one step: what was done, why, its gradient norm and the loss scale it was made with.

        A micro-batch that only accumulates is no step and is not counted. A halt is counted under
        ``skipped``, by its cause: the step was not applied. A norm that is NaN widens no range.
        """
        counts = self._epoch
        if action in _APPLIED:
            counts.applied += 1
            if action == Action.RETRY:
                counts.retried += 1
            # Comparisons cost half of what calls of min and max do, and a NaN passes neither.
            if grad_norm < counts.norm_min:  # noqa: PLR1730
                counts.norm_min = grad_norm
            if grad_norm > counts.norm_max:  # noqa: PLR1730
                counts.norm_max = grad_norm
        elif action == Action.ACCUMULATE:
            return
        elif action == Action.ROLL_BACK:
            counts.rollbacks += 1
        elif cause is None:
            raise UsageError(f"A step with the action {action} needs a cause to be counted under.")
        else:
            counts.skipped[cause] = counts.skipped.get(cause, 0) + 1
        counts.steps += 1
        if self._scale is not None and scale < self._scale:
            counts.reductions += 1
        self._scale = scale

    def summary(self, epoch: int | None = None) -> Summary:
        """The present epoch under the number that the loop gives it; with None, the whole run."""
        counts = self._epoch if epoch is not None else self._finished + self._epoch
        return counts.summary(epoch, 1.0 if self._scale is None else self._scale)

    def next_epoch(self) -> None:
        """Start the counts of the next epoch; the scale is compared across the border."""
        self._finished += self._epoch
        self._epoch = _Counts(Summary())

    def state_dict(self) -> dict[str, str | float | None]:
        """Everything, as plain JSON; the counts are versioned records themselves."""
        return {
            "finished": self._finished.summary(None, 1.0).to_json(),
            "epoch": self._epoch.summary(None, 1.0).to_json(),
            "scale": self._scale,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state_dict`` was taken; nothing changes where it cannot be read."""
        try:
            finished, epoch, scale = state["finished"], state["epoch"], state["scale"]
            loaded = [_Counts(Summary.from_json(text)) for text in (finished, epoch)]
        except (KeyError, TypeError) as error:
            raise RecordError(f"This is not the state of a tally: {error!r}.") from error
        if scale is not None and not isinstance(scale, int | float):
            raise RecordError(f"This is not the state of a tally: its scale is {scale!r}.")
        self._finished, self._epoch = loaded
        self._scale = scale
