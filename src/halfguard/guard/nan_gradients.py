"""NaN gradients that no loss scale cures: told apart from an overflow, so that the scale is kept.

A scaled gradient that leaves the range of half becomes infinite. Further back it often becomes NaN
(inf - inf, 0 * inf), so NaN gradients at a finite loss do not show by themselves whether the scale is the
cause. Lowering the scale is the experiment: at a scale of at most 1 nothing is enlarged, so gradients that
are NaN there are NaN at every scale. They come from an operation, such as the square root of 0.

The law has three parts:

1. If gradients were NaN at one scale after the other, down to one of at most 1, and another step is then
   applied, the scale returns to its value before the first of them. A step was applied with that value.
2. From then on, NaN gradients do not lower the scale, and count as bad steps.
3. This ends after ``patience`` applied steps. It ends earlier if ``limit`` steps in a row have NaN gradients,
   or one has gradients that are infinite but not NaN: the scale may be too large by now, and falls as usual.

The state is plain numbers and depends on the steps alone, so all ranks reach the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_NEUTRAL = 1.0  # a loss scale that enlarges nothing


@dataclass(frozen=True)
class NanGradients:
    """The steps with NaN gradients since ``trusted``, the scale of the last step applied before them."""

    trusted: float = 0.0  # 0 if no step was applied
    in_a_row: int = 0  # steps with NaN gradients since the last applied step
    age: int = 0  # applied steps since the last NaN, or since the proof
    proved: bool = False  # NaN at every scale

    @property
    def found(self) -> bool:
        """True if there were NaN gradients since the trusted step."""
        return self.in_a_row > 0 or self.age > 0

    def after_applied(self, scale: float, patience: int) -> tuple[NanGradients, float | None]:
        """Return the state after an applied step, and the scale to return to, if any."""
        if not self.found and scale == self.trusted:
            return self, None
        if not self.found or scale > self.trusted or self.age >= patience:
            return NanGradients(scale), None
        to = self.trusted if self.proved and scale < self.trusted else None
        return replace(self, in_a_row=0, age=self.age + 1), to

    def after_nan(self, scale: float, limit: int) -> tuple[NanGradients, float | None]:
        """Return the state after NaN gradients, and the scale to keep if it is not the cause."""
        if self.in_a_row >= limit:
            return NanGradients(in_a_row=self.in_a_row + 1), None
        if self.proved:
            # At a scale of 1 it waits for an applied step; above the trusted one it may be the cause.
            keep = self.trusted if _NEUTRAL < scale <= self.trusted else None
            return replace(self, in_a_row=self.in_a_row + 1), keep
        proved = scale <= _NEUTRAL < self.trusted
        return replace(self, in_a_row=self.in_a_row + 1, age=0, proved=proved), None
