"""Columns for the curves of a run. A row of the journal is one unusual step, or a group of healthy steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from halfguard.records.step import HealthyStepsRow, LossCurve, StepRow
from halfguard.report.columns import COLUMNS, Column, single_value, thin_columns

Parts = Sequence[StepRow | HealthyStepsRow]
EVERY_STEP = 2000  # a run of up to so many steps is drawn step by step


def _group(part: HealthyStepsRow, mean: float, low: float, high: float) -> Iterator[Column]:
    """Yield the same values at the first and the last step: the journal keeps no others."""
    for step in sorted({part.first_step, part.last_step}):
        yield Column(step, mean, low, high)


def loss_columns(parts: Parts) -> list[Column]:
    """Return the loss of every step of a short run; of a longer one the mean and the spread of buckets."""
    found: list[Column] = []
    for part in parts:
        if isinstance(part, StepRow):
            found.append(single_value(part.step, part.loss))
        elif part.losses is not None:
            found += _curve(part, part.losses)
        else:
            found += _group(part, part.loss_mean, part.loss_mean, part.loss_max)
    short = bool(found) and found[-1].step - found[0].step < EVERY_STEP
    return thin_columns(found, EVERY_STEP if short else COLUMNS)


def _curve(part: HealthyStepsRow, losses: LossCurve) -> Iterator[Column]:
    size = losses.steps_per_point
    lows, highs = losses.low or losses.mean, losses.high or losses.mean
    for index, (mean, low, high) in enumerate(zip(losses.mean, lows, highs, strict=False)):
        first = part.first_step + index * size
        last = min(first + size - 1, part.last_step)
        yield Column((first + last) / 2, mean, low, high)


def has_every_loss(parts: Parts) -> bool:
    """Return whether the loss of every step is known."""
    groups = [part for part in parts if isinstance(part, HealthyStepsRow)]
    return all(
        group.first_step == group.last_step
        or (group.losses is not None and group.losses.steps_per_point == 1)
        for group in groups
    )


def grad_norm_columns(parts: Parts) -> list[Column]:
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
    return thin_columns(found)


def loss_scale_columns(parts: Parts) -> list[Column]:
    """Return the loss scale at the end of each group."""
    return thin_columns(
        [
            single_value(step, part.scale)
            for part in parts
            for step in (
                sorted({part.first_step, part.last_step})
                if isinstance(part, HealthyStepsRow)
                else [part.step]
            )
        ]
    )
