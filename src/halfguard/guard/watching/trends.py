"""Which line will overflow next: the trend of each line's largest magnitude over the sampled steps. Pure.

The test of a trend (``numerics.forecast``) is quadratic in the number of points. So lines of code whose past,
extended straight, leads to no overflow soon are left out first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from math import inf, log2
from statistics import median

from halfguard.formats import for_dtype
from halfguard.guard.watching.layers import leaves_range
from halfguard.guard.watching.operation_maxima import Maximum, Place
from halfguard.numerics.forecast import MAX_AHEAD, MIN_POINTS, PredictedOverflow, forecast
from halfguard.records.watch import OverflowAhead

# Sampled steps to look back: a drift may begin late in a run. The first number is also how many are kept.
WINDOWS = (64, 32, 16)
NEW_HEIGHT = 2.0
_TESTED = 8  # lines per step: those that would overflow first


class Trends:
    """The largest magnitudes of every line in the forward pass."""

    def __init__(self) -> None:
        self._steps: dict[Place, deque[int]] = {}
        self._values: dict[Place, deque[float]] = {}
        self._limits: dict[Place, float] = {}

    def add(self, step: int, by_place: Mapping[Place, Maximum]) -> None:
        """Add a sampled step. A line that left the range has nothing more to forecast."""
        for place, one in by_place.items():
            if place.phase != "forward":
                continue
            if leaves_range(one) or one.absmax == 0:
                self._steps.pop(place, None)
                self._values.pop(place, None)
                continue
            self._steps.setdefault(place, deque(maxlen=WINDOWS[0])).append(step)
            self._values.setdefault(place, deque(maxlen=WINDOWS[0])).append(one.absmax)
            self._limits[place] = log2(for_dtype(one.dtype).largest)

    def forecasts(self) -> list[OverflowAhead]:
        """Return the lines that will overflow, the next one first."""
        rough = {}
        for place, values in self._values.items():
            series = list(self._steps[place]), list(values)
            limit = self._limits[place]
            ahead = min(_rough_ahead(steps, some, limit) for steps, some in _windows(*series))
            if ahead < inf:
                rough[place] = ahead, series
        found = []
        for place in sorted(rough, key=lambda place: rough[place][0])[:_TESTED]:
            series = rough[place][1]
            for steps, some in _windows(*series):
                overflow = forecast(some, steps=steps, limit=self._limits[place])
                if overflow is not None:
                    found.append(_describe(place, steps[-1], overflow))
                    break
        return sorted(found, key=lambda one: one.step)


def _windows(steps: list[int], values: list[float]) -> Iterator[tuple[list[int], list[float]]]:
    """Yield the whole series, and its latest parts where these rise above all that was before.

    Magnitudes that come and go with the data rise in parts of a series too, to where they have been before.
    """
    yield steps, values
    for size in WINDOWS[1:]:
        if len(steps) > size and median(values[-3:]) > NEW_HEIGHT * max(values[:-size]):
            yield steps[-size:], values[-size:]


def _rough_ahead(steps: list[int], values: list[float], limit: float) -> float:
    """Return the steps until the limit by a line through first and last third; infinite if far away."""
    count = len(values)
    if count < MIN_POINTS:
        return inf
    third, length = count // 3, steps[-1] - steps[0]
    begin, end = log2(median(values[:third])), log2(median(values[-third:]))
    if end <= begin:
        return inf
    ahead = (limit - end) / (end - begin) * length * (1 - third / count)
    return ahead if ahead < 2 * MAX_AHEAD * length else inf


def _describe(place: Place, step: int, ahead: PredictedOverflow) -> OverflowAhead:
    return OverflowAhead(
        module=place.module,
        op=place.op,
        file=place.file,
        line=place.line,
        step=step + round(ahead.steps),
        earliest=step + round(ahead.low),
        latest=step + ahead.high,
        doubling=ahead.doubling,
    )
