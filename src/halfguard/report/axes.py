"""Axes and labels of drawings: positions of numbers, round tick values, short texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width


@dataclass(frozen=True)
class Axis:
    """Maps numbers from ``low`` to ``high`` to positions from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a number; one beyond the axis gets the position of its end."""
        low, high, here = self.low, self.high, value
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(max(value, self.low))
        share = min(max((here - low) / (high - low), 0.0), 1.0)
        return self.start + (self.end - self.start) * share

    def ticks(self, count: int = 5) -> list[float]:
        """Return round numbers on the axis, about ``count`` at most."""
        return (
            _powers(self.low, self.high, count)
            if self.log
            else _round_numbers(self.low, self.high, count)
        )


def fit_axis(values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
    """Return an axis that covers all finite ``values``, with a small margin.

    A logarithmic axis shows positive numbers, down to twelve decades below the largest. Otherwise one loss
    scale near zero would flatten everything else.
    """
    kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    # Beyond these limits, the ends of the axis would overflow a float.
    least, most = (1e-300 if log else -1e300), 1e300
    kept = [min(max(value, least), most) for value in kept] or [0.5, 1.0]
    low, high = min(kept), max(kept)
    if log:
        low = max(low, high * 1e-12)
        if high / low < 1 + 1e-9:  # equal, or too close for their logarithms to differ
            low, high = low / 2, high * 2
        margin = (high / low) ** 0.05
        return Axis(max(low / margin, least), min(high * margin, most), start, end, log=True)
    margin = (high - low) * 0.05 or abs(low) * 0.1 or 1.0
    return Axis(low - margin, high + margin, start, end)


def suits_log_axis(values: Sequence[float]) -> bool:
    """Return whether a logarithmic axis suits: values are positive and differ by a factor above 50."""
    kept = [value for value in values if math.isfinite(value)]
    return bool(kept) and min(kept) > 0 and max(kept) > 50 * min(kept)


def number_label(value: float) -> str:
    """Return a short label for a number."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:.6g}"
    return f"{value:.0e}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")


def percent_label(value: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * value:z.4g}%"


def shorten(name: str, most: int) -> str:
    """Shorten ``name`` in the middle to at most ``most`` letters; wide East Asian letters count twice.

    Candidates often differ in how they end: "fp16-mixed guarded", "fp16-mixed guarded with plan".
    """
    if display_width(name) <= most:
        return name
    head, tail = name, ""
    while display_width(head) > most // 2:
        head = head[:-1]
    for letter in reversed(name):
        if display_width(head) + 1 + display_width(letter + tail) > most:
            break
        tail = letter + tail
    return f"{head}…{tail}"


def display_width(text: str) -> int:
    """Return the width of a text in letters; wide East Asian letters count twice."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _round_numbers(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= 0.75 * rough)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def _powers(low: float, high: float, count: int) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    if last - first < 1:  # within one decade: powers of two, or other round numbers
        twos = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        if len(twos) > 1:
            return [2.0**power for power in twos][:: max(1, len(twos) // count)]
        return [value for value in _round_numbers(low, high, count) if value > 0]
    stride = max(1, math.ceil((last - first + 1) / count))
    return [10.0**power for power in range(first, last + 1, stride)]
