"""Consecutive healthy steps folded into one row as they come: constant memory, a few comparisons each."""

from __future__ import annotations

from halfguard.records import WindowRow


class Window:
    """The healthy steps since the last row; ``next_step`` is the only one that may join them."""

    __slots__ = (
        "first_step", "grad_norm_max", "grad_norm_min", "loss_max", "loss_sum", "next_step", "scale"
    )  # fmt: skip

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget every step; the next one may have any number."""
        # No step is negative, so first = next = -1 both says "empty" and never matches a step.
        self.first_step = self.next_step = -1
        self.loss_sum = 0.0
        self.loss_max = float("-inf")
        self.grad_norm_min = float("inf")
        self.grad_norm_max = float("-inf")
        self.scale = 1.0

    def __len__(self) -> int:
        return self.next_step - self.first_step

    def add(self, step: int, loss: float, grad_norm: float, scale: float) -> None:
        """Fold one step in; its number is ``next_step``, or the window is empty."""
        if self.first_step < 0:
            self.first_step = step
        self.next_step = step + 1
        self.loss_sum += loss
        # Once a step for the whole run: a comparison costs half of what a call of min or max does.
        if loss > self.loss_max:  # noqa: PLR1730
            self.loss_max = loss
        if grad_norm < self.grad_norm_min:  # noqa: PLR1730
            self.grad_norm_min = grad_norm
        if grad_norm > self.grad_norm_max:  # noqa: PLR1730
            self.grad_norm_max = grad_norm
        self.scale = scale

    def row(self) -> WindowRow | None:
        """The steps so far as a row; None where there are none."""
        if not len(self):
            return None
        return WindowRow(
            first_step=self.first_step,
            last_step=self.next_step - 1,
            loss_mean=self.loss_sum / len(self),
            loss_max=self.loss_max,
            grad_norm_min=self.grad_norm_min,
            grad_norm_max=self.grad_norm_max,
            scale=self.scale,
        )
