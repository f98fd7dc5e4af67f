"""Consecutive healthy steps, accumulated into one row with constant memory and few comparisons per step."""

from __future__ import annotations

from halfguard.records import HealthyStepsRow


class HealthySteps:
    """The healthy steps since the last row; only ``next_step`` may be added."""

    __slots__ = (
        "first_step", "grad_norm_max", "grad_norm_min", "loss_max", "loss_sum", "next_step", "scale"
    )  # fmt: skip

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all steps; the next one may have any number."""
        # No step is negative: first = next = -1 means "empty" and never matches a step.
        self.first_step = self.next_step = -1
        self.loss_sum = 0.0
        self.loss_max = float("-inf")
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
        self.loss_sum += loss
        # This runs at every step: a comparison costs half as much as a call of min or max.
        if loss > self.loss_max:  # noqa: PLR1730
            self.loss_max = loss
        if grad_norm < self.grad_norm_min:  # noqa: PLR1730
            self.grad_norm_min = grad_norm
        if grad_norm > self.grad_norm_max:  # noqa: PLR1730
            self.grad_norm_max = grad_norm
        self.scale = scale

    def to_row(self) -> HealthyStepsRow | None:
        """Return the steps so far as a row; None if there are none."""
        if not len(self):
            return None
        return HealthyStepsRow(
            first_step=self.first_step,
            last_step=self.next_step - 1,
            loss_mean=self.loss_sum / len(self),
            loss_max=self.loss_max,
            grad_norm_min=self.grad_norm_min,
            grad_norm_max=self.grad_norm_max,
            scale=self.scale,
        )
