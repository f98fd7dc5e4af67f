"""Which line will overflow next: the growth of each line's largest magnitude over the sampled steps. Pure.

A run that levels off at half of the range looks, until then, like one that does not. So nothing is announced
early: a forecast is made when the overflow is ``HORIZON`` samples away or less. Growth is fitted to windows
of several lengths (``growth``), and all of them must say so. The longest does not follow noise, the shortest
sees first that growth slows down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf, log2
from statistics import median

from halfguard.formats import for_dtype
from halfguard.guard.watching.growth import Growth, fit_growth, smooth
from halfguard.guard.watching.layers import leaves_range
from halfguard.guard.watching.operation_maxima import Maximum, Place
from halfguard.records.watch import OverflowAhead

# All in sampled steps.
WINDOWS = (12, 20, 32)
LEAST = 16  # fewer are no evidence
HORIZON = 18
# A magnitude that has grown by a factor f in the longest window may be extended by f ** 1.5.
STRETCH = 1.5
_KEPT = 64  # sampled steps: magnitudes that come and go with the data rise to where they have been before
_TESTED = 8  # lines per step: those that would overflow first


class Trends:
    """The largest magnitudes of every line in the forward pass."""

    def __init__(self) -> None:
        self._steps: dict[Place, deque[int]] = {}
        self._values: dict[Place, deque[float]] = {}
        self._largest: dict[Place, float] = {}  # of the format

    def add(self, step: int, by_place: Mapping[Place, Maximum]) -> None:
        """Add a sampled step. A line that left the range has nothing more to forecast."""
        for place, one in by_place.items():
            if place.phase != "forward":
                continue
            if leaves_range(one) or one.absmax == 0:
                self._steps.pop(place, None)
                self._values.pop(place, None)
                continue
            self._steps.setdefault(place, deque(maxlen=_KEPT)).append(step)
            self._values.setdefault(place, deque(maxlen=_KEPT)).append(one.absmax)
            self._largest[place] = for_dtype(one.dtype).largest

    def forecasts(self) -> list[OverflowAhead]:
        """Return the lines that will overflow, the next one first."""
        rough = {
            place: ahead
            for place, values in self._values.items()
            if (ahead := _rough_ahead(values, self._largest[place])) < 3 * HORIZON
        }
        found = []
        for place in sorted(rough, key=rough.__getitem__)[:_TESTED]:
            steps = list(self._steps[place])
            shares = [value / self._largest[place] for value in self._values[place]]
            growth = growth_to_limit(steps, shares)
            if growth is not None:
                found.append(_describe(place, steps[-1], growth))
        return sorted(found, key=lambda one: one.step)


def growth_to_limit(steps: Sequence[int], shares: Sequence[float]) -> Growth | None:
    """Return the growth of shares of the limit to the limit, if it is near; the slowest of the windows."""
    shortest = WINDOWS[0]
    if len(steps) < LEAST:
        return None
    shares = smooth(shares)
    latest, first = shares[-1], shares[-WINDOWS[-1] :][0]
    is_new_height = median(shares[-3:]) > max(shares[:-shortest])
    if not is_new_height or latest * (latest / first) ** STRETCH < 1:
        return None
    near = HORIZON * (steps[-1] - steps[-shortest]) / (shortest - 1)
    found: list[Growth] = []
    for size in WINDOWS:
        growth = fit_growth(steps[-size:], shares[-size:])
        if growth is None or growth.ahead > near:
            return None
        found.append(growth)
    slowest = max(found, key=lambda one: one.ahead)
    return Growth(
        slowest.ahead,
        min(one.earliest for one in found),
        max(one.latest for one in found),
        found[0].doubling,
    )


def _rough_ahead(values: Sequence[float], largest: float) -> float:
    """Return the samples until the limit by a line in log2 through the latest; infinite if it falls."""
    shortest = WINDOWS[0]
    if len(values) < shortest:
        return inf
    recent = list(values)[-shortest:]
    begin, end = median(recent[:4]), median(recent[-4:])
    return log2(largest / end) / log2(end / begin) * (shortest - 4) if end > begin else inf


def _describe(place: Place, step: int, ahead: Growth) -> OverflowAhead:
    return OverflowAhead(
        module=place.module,
        op=place.op,
        file=place.file,
        line=place.line,
        step=step + round(ahead.ahead),
        earliest=step + round(ahead.earliest),
        latest=step + ahead.latest,
        doubling=ahead.doubling,
    )
