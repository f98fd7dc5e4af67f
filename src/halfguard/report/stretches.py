"""The journal's stretches of healthy steps, and its unusual steps, as columns of a curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from halfguard.records.step import StepRow, WindowRow
from halfguard.report.curves import Column, point


def _ends(part: WindowRow, mean: float, low: float, high: float) -> Iterator[Column]:
    """A window is level from its first step to its last: that is all that is known of it."""
    for step in sorted({part.first_step, part.last_step}):
        yield Column(step, mean, low, high)


def loss(parts: Sequence[StepRow | WindowRow]) -> list[Column]:
    """The mean and the highest of each stretch."""
    found: list[Column] = []
    for part in parts:
        if isinstance(part, WindowRow):
            found += _ends(part, part.loss_mean, part.loss_mean, part.loss_max)
        else:
            found.append(point(part.step, part.loss))
    return found


def norms(parts: Sequence[StepRow | WindowRow]) -> list[Column]:
    """From the lowest to the highest of each stretch."""
    found: list[Column] = []
    for part in parts:
        if isinstance(part, WindowRow):
            low, high = part.grad_norm_min, part.grad_norm_max
            # The axis is logarithmic: the middle of the band is the geometric one.
            middle = math.sqrt(low) * math.sqrt(high) if low > 0 else high
            found += _ends(part, middle, low, high)
        else:
            found.append(point(part.step, part.grad_norm))
    return found


def scales(parts: Sequence[StepRow | WindowRow]) -> list[Column]:
    """The loss scale, known at the end of a stretch."""
    return [
        point(step, part.scale)
        for part in parts
        for step in (
            sorted({part.first_step, part.last_step})
            if isinstance(part, WindowRow)
            else [part.step]
        )
    ]
