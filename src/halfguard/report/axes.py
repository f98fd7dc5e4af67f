"""Axes: where a number lies on paper, and which round numbers stand beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high`` in numbers, from ``start`` to ``end`` on paper; ``log`` for ratios."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a number; what lies beyond the axis is put at its end."""
        low, high, here = self.low, self.high, value
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(max(value, self.low))
        share = min(max((here - low) / (high - low), 0.0), 1.0)
        return self.start + (self.end - self.start) * share

    def ticks(self, count: int = 5) -> list[float]:
        """Round numbers on the axis, at most about ``count``."""
        return (
            _powers(self.low, self.high, count) if self.log else _round(self.low, self.high, count)
        )


def covering(values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
    """An axis on which all finite ``values`` lie, with a little air.

    A logarithmic one shows positive numbers, down to twelve decades below the largest: a loss scale that
    fell to nothing must not flatten everything else.
    """
    kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    # Beyond these, the axis itself would leave what a float can hold.
    least, most = (1e-300 if log else -1e300), 1e300
    kept = [min(max(value, least), most) for value in kept] or [0.5, 1.0]
    low, high = min(kept), max(kept)
    if log:
        low = max(low, high * 1e-12)
        if low == high:
            low, high = low / 2, high * 2
        air = (high / low) ** 0.05
        return Axis(max(low / air, least), min(high * air, most), start, end, log=True)
    air = (high - low) * 0.05 or abs(low) * 0.1 or 1.0
    return Axis(low - air, high + air, start, end)


def spans_decades(values: Sequence[float]) -> bool:
    """Whether numbers are better told apart by their ratios: all positive, and far from each other."""
    kept = [value for value in values if math.isfinite(value)]
    return bool(kept) and min(kept) > 0 and max(kept) > 50 * min(kept)


def plain(value: float) -> str:
    """A number beside an axis: short."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:.6g}"
    return f"{value:.0e}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")


def percent(value: float) -> str:
    """A share beside an axis."""
    return f"{100 * value:z.4g}%"


def _round(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= 0.75 * rough)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def _powers(low: float, high: float, count: int) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    if last - first < 1:  # within one decade: powers of two, or whatever is round
        twos = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        if len(twos) > 1:
            return [2.0**power for power in twos][:: max(1, len(twos) // count)]
        return [value for value in _round(low, high, count) if value > 0]
    stride = max(1, math.ceil((last - first + 1) / count))
    return [10.0**power for power in range(first, last + 1, stride)]
