"""Which loss scales fit: arithmetic on histograms of exponents, without a tensor in it.

A loss scale of 2**k moves every gradient k binades up. FP16 holds the binades -24 to 15, so one histogram
answers for all scales at once: the highest k at which the largest gradient stays below 65520, and the
lowest at which no more than a given share of the gradients falls below 2**-25 and is rounded to zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from halfguard.formats import FP16
from halfguard.numerics.histogram import HIGHEST, LOWEST, bin_of

LOWEST_SCALE, HIGHEST_SCALE = 0, 24  # as powers of two: the floor and ceiling of the guard's scaler
_LAST_LOST = (
    round(math.log2(FP16.underflow_threshold)) - 1
)  # the highest binade that rounds to zero
MARGIN = 1  # bits kept free above the largest gradient seen, since the next one may be larger

Binades = Mapping[int, int]  # binade -> how many values


def binades(bins: Mapping[int, int], shift: int = 0) -> dict[int, int]:
    """Counts by binade from a trace's columns; ``shift`` takes a loss scale of 2**shift off."""
    first, last = bin_of(LOWEST), bin_of(HIGHEST)
    return {
        column - first + LOWEST - shift: count
        for column, count in bins.items()
        if first <= column <= last
    }


def added(parts: Iterable[Binades]) -> dict[int, int]:
    """All counts together."""
    total: dict[int, int] = {}
    for part in parts:
        for binade, count in part.items():
            total[binade] = total.get(binade, 0) + count
    return total


def weighty(counts: Binades) -> dict[int, int]:
    """The values of one tensor that matter: below 2**-24 of the largest, FP32 sums lose them as well."""
    top = max(counts, default=0)
    return {binade: count for binade, count in counts.items() if binade >= top - 24}


def lost_share(counts: Binades, exponent: int) -> float:
    """The share of non-zero values that a scale of 2**exponent leaves below FP16."""
    total = sum(counts.values())
    lost = sum(count for binade, count in counts.items() if binade + exponent <= _LAST_LOST)
    return lost / total if total else 0.0


def lowest_exponent(counts: Binades, allowed: float) -> int | None:
    """The smallest k at which at most ``allowed`` of the values are lost; None if there are none."""
    if not counts:
        return None
    span = range(-HIGHEST, -LOWEST + 1)
    return next((k for k in span if lost_share(counts, k) <= allowed), span.stop)


def highest_exponent(absmax: float) -> int | None:
    """The largest k at which 2**k * absmax does not overflow; None if nothing ever does."""
    if not absmax or not math.isfinite(absmax):
        return None
    k = math.floor(math.log2(FP16.overflow_threshold / absmax))
    return k if math.ldexp(absmax, k) < FP16.overflow_threshold else k - 1


@dataclass(frozen=True)
class Window:
    """The exponents between which all layers fit, as far as a scaler may go; empty if low > high."""

    low: int
    high: int

    @classmethod
    def of(cls, lows: Iterable[int | None], highs: Iterable[int | None]) -> Window:
        """The overlap of all layers' windows."""
        low = max((k for k in lows if k is not None), default=LOWEST_SCALE)
        high = min((k for k in highs if k is not None), default=HIGHEST_SCALE)
        return cls(max(low, LOWEST_SCALE), min(high, HIGHEST_SCALE))

    @property
    def empty(self) -> bool:
        """Whether no scale fits all layers."""
        return self.low > self.high

    @property
    def best(self) -> int:
        """The highest scale that leaves a margin: an overflow costs a step, an underflow a small value."""
        return max(min(self.high, HIGHEST_SCALE) - MARGIN, LOWEST_SCALE)
