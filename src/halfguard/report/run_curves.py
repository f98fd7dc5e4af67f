"""Columns for the curves of a run. A row of the journal is one unusual step, or a group of healthy steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from halfguard.records.step import HealthyStepsRow, StepRow
from halfguard.report.curves import Column, single_value


def _group(part: HealthyStepsRow, mean: float, low: float, high: float) -> Iterator[Column]:
    """Yield the same values at the first and the last step: the journal keeps no others."""
    for step in sorted({part.first_step, part.last_step}):
        yield Column(step, mean, low, high)


def loss_columns(parts: Sequence[StepRow | HealthyStepsRow]) -> list[Column]:
    """Return the mean and the highest loss of each group."""
    found: list[Column] = []
    for part in parts:
        if isinstance(part, HealthyStepsRow):
            found += _group(part, part.loss_mean, part.loss_mean, part.loss_max)
        else:
            found.append(single_value(part.step, part.loss))
    return found


def grad_norm_columns(parts: Sequence[StepRow | HealthyStepsRow]) -> list[Column]:
    """Return the lowest and the highest gradient norm of each group."""
    found: list[Column] = []
    for part in parts:
        if isinstance(part, HealthyStepsRow):
            low, high = part.grad_norm_min, part.grad_norm_max
            # The axis is logarithmic, so the middle of the band is the geometric mean.
            middle = math.sqrt(low) * math.sqrt(high) if low > 0 else high
            found += _group(part, middle, low, high)
        else:
            found.append(single_value(part.step, part.grad_norm))
    return found


def loss_scale_columns(parts: Sequence[StepRow | HealthyStepsRow]) -> list[Column]:
    """Return the loss scale at the end of each group."""
    return [
        single_value(step, part.scale)
        for part in parts
        for step in (
            sorted({part.first_step, part.last_step})
            if isinstance(part, HealthyStepsRow)
            else [part.step]
        )
    ]
