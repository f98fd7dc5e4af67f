"""Consecutive healthy steps, accumulated into one row with little work per step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from halfguard.records import HealthyStepsRow
from halfguard.records.step import LossCurve

# A group that begins before this step has a point in the curve of the loss for so many steps. A long run
# is drawn with fewer points than that, so its journal stays small.
_STEPS_PER_POINT = ((2_000, 1), (20_000, 50))
_STEPS_PER_LATE_POINT = 500


class HealthySteps:
    """The healthy steps since the last row; only ``next_step`` may be added."""

    __slots__ = ("first_step", "grad_norm_max", "grad_norm_min", "losses", "next_step", "scale")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all steps; the next one may have any number."""
        # No step is negative: first = next = -1 means "empty" and never matches a step.
        self.first_step = self.next_step = -1
        self.losses = array("d")  # 8 bytes a step
        self.grad_norm_min = float("inf")
        self.grad_norm_max = float("-inf")
        self.scale = 1.0

    def __len__(self) -> int:
        return self.next_step - self.first_step

    def add(self, step: int, loss: float, grad_norm: float, scale: float) -> None:
        """Add a step; its number is ``next_step``, unless the group is empty."""
        if self.first_step < 0:
            self.first_step = step
        self.next_step = step + 1
        self.losses.append(loss)
        # This runs at every step: a comparison costs half as much as a call of min or max.
        if grad_norm < self.grad_norm_min:  # noqa: PLR1730
            self.grad_norm_min = grad_norm
        if grad_norm > self.grad_norm_max:  # noqa: PLR1730
            self.grad_norm_max = grad_norm
        self.scale = scale

    def to_row(self, *, with_losses: bool = True) -> HealthyStepsRow | None:
        """Return the steps so far as a row; None if there are none."""
        if not len(self):
            return None
        return HealthyStepsRow(
            first_step=self.first_step,
            last_step=self.next_step - 1,
            loss_mean=sum(self.losses) / len(self),
            loss_max=max(self.losses),
            grad_norm_min=self.grad_norm_min,
            grad_norm_max=self.grad_norm_max,
            scale=self.scale,
            losses=self._loss_curve() if with_losses else None,
        )

    def _loss_curve(self) -> LossCurve | None:
        if len(self) < 2 or not all(map(math.isfinite, self.losses)):
            return None  # the mean describes one step; some frameworks do not tell their losses
        size = _steps_per_point(self.first_step)
        if size == 1:
            return LossCurve(steps_per_point=1, mean=_round(self.losses))
        points = [self.losses[start : start + size] for start in range(0, len(self), size)]
        return LossCurve(
            steps_per_point=size,
            mean=_round([sum(point) / len(point) for point in points]),
            low=_round([min(point) for point in points]),
            high=_round([max(point) for point in points]),
        )


def _steps_per_point(first_step: int) -> int:
    return next((size for end, size in _STEPS_PER_POINT if first_step < end), _STEPS_PER_LATE_POINT)


def _round(values: Sequence[float]) -> tuple[float, ...]:
    """Return values with six digits: a drawing shows no more, and the file is half as large."""
    return tuple(float(f"{value:.6g}") for value in values)
