"""Counts of applied, skipped and rolled-back steps, for the current epoch and for the whole run.

A step is counted once, in its epoch. The counts of the run are those of the finished epochs plus the current
one. Every step has exactly one of three results, so ``applied + skipped + rollbacks == steps``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from halfguard.errors import RecordError, UsageError
from halfguard.records import Action, Cause, HealthWarning, Summary

_APPLIED = (Action.APPLY, Action.RETRY)


class _Counts:
    """The counts of a ``Summary``, under the same names, mutable."""

    def __init__(self, start: Summary) -> None:
        self.steps, self.applied, self.retried = start.steps, start.applied, start.retried
        self.skipped, self.rollbacks = dict(start.skipped), start.rollbacks
        self.scale_reductions, self.warnings = start.scale_reductions, start.warnings
        self.grad_norm_min, self.grad_norm_max = start.grad_norm_min, start.grad_norm_max

    def summary(self, epoch: int | None, scale: float) -> Summary:
        return Summary(epoch=epoch, scale=scale, **vars(self))

    def __add__(self, other: _Counts) -> _Counts:
        total = _Counts(Summary())
        for name in ("steps", "applied", "retried", "rollbacks", "scale_reductions"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        total.skipped = dict(Counter(self.skipped) + Counter(other.skipped))
        total.grad_norm_min = min(self.grad_norm_min, other.grad_norm_min)
        total.grad_norm_max = max(self.grad_norm_max, other.grad_norm_max)
        total.warnings = tuple(dict.fromkeys((*self.warnings, *other.warnings)))
        return total


class StepCounter:
    """Counts steps. It performs no I/O, and its state is plain JSON."""

    def __init__(self) -> None:
        self._finished = _Counts(Summary())
        self._epoch = _Counts(Summary())
        self._scale: float | None = None

    def add(self, action: Action, cause: Cause | None, grad_norm: float, scale: float) -> None:
        """Count one step by its action and cause; update the ranges of gradient norm and loss scale.

        A micro-batch that only accumulates is not a step and is not counted. A halt is counted under
        ``skipped``, by its cause: the step was not applied. A norm that is NaN changes no range.
        """
        counts = self._epoch
        if action in _APPLIED:
            counts.applied += 1
            if action == Action.RETRY:
                counts.retried += 1
            # Comparisons cost half as much as min and max, and they are false for NaN.
            if grad_norm < counts.grad_norm_min:  # noqa: PLR1730
                counts.grad_norm_min = grad_norm
            if grad_norm > counts.grad_norm_max:  # noqa: PLR1730
                counts.grad_norm_max = grad_norm
        elif action == Action.ACCUMULATE:
            return
        elif action == Action.ROLL_BACK:
            counts.rollbacks += 1
        elif cause is None:
            raise UsageError(f"A step with the action {action} cannot be counted without a cause.")
        else:
            counts.skipped[cause] = counts.skipped.get(cause, 0) + 1
        counts.steps += 1
        if self._scale is not None and scale < self._scale:
            counts.scale_reductions += 1
        self._scale = scale

    def add_warning(self, warning: HealthWarning) -> None:
        """Note a warning about the run."""
        if warning not in self._epoch.warnings:
            self._epoch.warnings += (warning,)

    def set_scale(self, scale: float) -> None:
        """Set the present loss scale: an overflow in the last step has lowered it since."""
        if self._scale is not None:  # after the first step
            self._epoch.scale_reductions += scale < self._scale
            self._scale = scale

    def summary(self, epoch: int | None = None) -> Summary:
        """Return the counts of the current epoch, labelled ``epoch``; with None, of the whole run."""
        counts = self._epoch if epoch is not None else self._finished + self._epoch
        return counts.summary(epoch, 1.0 if self._scale is None else self._scale)

    def next_epoch(self) -> None:
        """Start the counts of the next epoch; the last loss scale is kept for comparison."""
        self._finished += self._epoch
        self._epoch = _Counts(Summary())

    def state_dict(self) -> dict[str, str | float | None]:
        """Return the state as plain JSON; the counts in it are versioned records."""
        return {
            "finished": self._finished.summary(None, 1.0).to_json(),
            "epoch": self._epoch.summary(None, 1.0).to_json(),
            "scale": self._scale,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from ``state_dict``; if it cannot be read, nothing changes."""
        try:
            finished, epoch, scale = state["finished"], state["epoch"], state["scale"]
            loaded = [_Counts(Summary.from_json(text)) for text in (finished, epoch)]
        except (KeyError, TypeError) as error:
            raise RecordError(f"This is not the state of a step counter: {error!r}.") from error
        if scale is not None and not isinstance(scale, int | float):
            raise RecordError(f"This is not the state of a step counter: its scale is {scale!r}.")
        self._finished, self._epoch = loaded
        self._scale = scale
