"""Consecutive healthy steps, accumulated into one row with little work per step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from halfguard.records import HealthyStepsRow

EVERY_STEP_UNTIL = 2000  # a group that begins before this step keeps the loss of each of its steps
STEPS_PER_LOSS = 50  # later groups keep the mean, lowest and highest loss of so many steps


class HealthySteps:
    """The healthy steps since the last row; only ``next_step`` may be added."""

    __slots__ = ("first_step", "grad_norm_max", "grad_norm_min", "losses", "next_step", "scale")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all steps; the next one may have any number."""
        # No step is negative: first = next = -1 means "empty" and never matches a step.
        self.first_step = self.next_step = -1
        self.losses: list[float] = []
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
            **(self._loss_curve() if with_losses else {}),
        )

    def _loss_curve(self) -> dict[str, Any]:
        known = [loss for loss in self.losses if math.isfinite(loss)]
        if len(known) < len(self.losses) or len(known) < 2:
            return {}  # a framework did not tell its losses, or one step, which the mean describes
        if self.first_step < EVERY_STEP_UNTIL:
            return {"losses": _round(known)}
        size = STEPS_PER_LOSS
        groups = [known[start : start + size] for start in range(0, len(known), size)]
        return {
            "steps_per_loss": size,
            "losses": _round([sum(group) / len(group) for group in groups]),
            "losses_low": _round([min(group) for group in groups]),
            "losses_high": _round([max(group) for group in groups]),
        }


def _round(values: Sequence[float]) -> tuple[float, ...]:
    """Return values with six digits: a drawing shows no more, and the file is half as large."""
    return tuple(float(f"{value:.6g}") for value in values)
