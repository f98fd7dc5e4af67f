"""Columns of a curve: neighbouring steps with the mean, the lowest and the highest of their values.

A curve of any length is drawn from a bounded number of columns. So the page stays small, and a spike of one
step stays visible.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

COLUMNS = 320  # per line of a drawing with several; a screen cannot show more


@dataclass(frozen=True)
class Column:
    """Neighbouring steps: their position and their values."""

    step: float
    mean: float
    low: float
    high: float
    nonfinite: int = 0  # number of values that were not finite


Series = tuple[Sequence[float], Sequence[float]]  # steps, and one value for each


def gather_columns(runs: Sequence[Series], count: int = COLUMNS) -> list[Column]:
    """Gather several runs, each with ascending steps, into at most ``count`` columns.

    There may be millions of values, so this works on slices, not on single values.
    """
    runs = [run for run in runs if run[0]]
    if not runs:
        return []
    first, last = min(steps[0] for steps, _ in runs), max(steps[-1] for steps, _ in runs)
    width = max((last - first + 1) / count, 1.0)
    found, starts = [], [0] * len(runs)
    for index in range(int((last - first) // width) + 1):
        ends = [bisect_left(steps, first + (index + 1) * width) for steps, _ in runs]
        slices = [
            (steps[start:end], values[start:end])
            for (steps, values), start, end in zip(runs, starts, ends, strict=True)
            if end > start
        ]
        if slices:
            found.append(_gather(slices))
        starts = ends
    return found


def _gather(slices: Sequence[Series]) -> Column:
    step = sum((steps[0] + steps[-1]) / 2 for steps, _ in slices) / len(slices)
    good = [value for _, values in slices for value in _finite_values(values)]
    nonfinite = sum(len(values) for _, values in slices) - len(good)
    if not good:
        return Column(step, math.nan, math.nan, math.nan, nonfinite)
    return Column(step, _mean(good), min(good), max(good), nonfinite)


def _finite_values(values: Sequence[float]) -> Sequence[float]:
    try:
        finite = math.isfinite(math.fsum(values))
    except (OverflowError, ValueError):  # the sum overflows, or has infinities of both signs
        finite = False
    return values if finite else [value for value in values if math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum overflows, the mean does not
        largest = max(map(abs, values))
        return math.fsum(value / largest for value in values) / len(values) * largest


def thin_columns(given: Sequence[Column], count: int = COLUMNS) -> list[Column]:
    """Merge columns into at most ``count`` of equal width, in the order of their steps."""
    if not given:
        return []
    first, last = min(c.step for c in given), max(c.step for c in given)
    width = max((last - first + 1) / count, 1.0)
    gathered: dict[int, list[Column]] = {}
    for column in given:
        gathered.setdefault(int((column.step - first) // width), []).append(column)
    return [_merge(part) for _, part in sorted(gathered.items())]


def single_value(step: float, value: float) -> Column:
    """Return a column for one value at one step."""
    if math.isfinite(value):
        return Column(step, value, value, value)
    return Column(step, math.nan, math.nan, math.nan, 1)


def _merge(parts: list[Column]) -> Column:
    if len(parts) == 1:
        return parts[0]
    step = sum(part.step for part in parts) / len(parts)
    nonfinite = sum(part.nonfinite for part in parts)
    good = [part for part in parts if not math.isnan(part.mean)]
    if not good:
        return Column(step, math.nan, math.nan, math.nan, nonfinite)
    mean = _mean([part.mean for part in good])
    return Column(step, mean, min(p.low for p in good), max(p.high for p in good), nonfinite)
