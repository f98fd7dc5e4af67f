"""The loss scales that fit: arithmetic on histograms of exponents, without tensors.

A loss scale of 2**k moves every gradient k binades up. FP16 holds the binades -24 to 15, so one histogram
answers for all scales at once: the highest k at which the largest gradient stays below 65520, and the
lowest at which no more than a given share of the gradients falls below 2**-25 and is rounded to zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from halfguard.formats import FP16
from halfguard.numerics.histogram import HIGHEST, LOWEST, bin_index

MIN_EXPONENT, MAX_EXPONENT = 0, 24  # powers of two: the floor and ceiling of the guard's scaler
# The highest binade that is rounded to zero.
_LAST_LOST = round(math.log2(FP16.underflow_threshold)) - 1
MARGIN_BITS = 1  # kept free above the largest gradient so far, since the next one may be larger

BinadeCounts = Mapping[int, int]  # binade -> number of values


def binade_counts(bins: Mapping[int, int], shift: int = 0) -> dict[int, int]:
    """Return counts by binade from a trace's columns; ``shift`` removes a loss scale of 2**shift."""
    first, last = bin_index(LOWEST), bin_index(HIGHEST)
    return {
        column - first + LOWEST - shift: count
        for column, count in bins.items()
        if first <= column <= last
    }


def add_counts(parts: Iterable[BinadeCounts]) -> dict[int, int]:
    """Return the sum of all counts, by binade."""
    total: dict[int, int] = {}
    for part in parts:
        for binade, count in part.items():
            total[binade] = total.get(binade, 0) + count
    return total


def significant_values(counts: BinadeCounts) -> dict[int, int]:
    """Return the counts without values below 2**-24 of the largest: FP32 sums lose these too."""
    top = max(counts, default=0)
    return {binade: count for binade, count in counts.items() if binade >= top - 24}


def lost_share(counts: BinadeCounts, exponent: int) -> float:
    """Return the share of non-zero values that FP16 rounds to zero at a scale of 2**exponent."""
    total = sum(counts.values())
    lost = sum(count for binade, count in counts.items() if binade + exponent <= _LAST_LOST)
    return lost / total if total else 0.0


def lowest_exponent(counts: BinadeCounts, allowed: float) -> int | None:
    """Return the smallest k at which at most ``allowed`` of the values are lost; None without values."""
    if not counts:
        return None
    span = range(-HIGHEST, -LOWEST + 1)
    return next((k for k in span if lost_share(counts, k) <= allowed), span.stop)


def highest_exponent(absmax: float) -> int | None:
    """Return the largest k at which 2**k * absmax does not overflow; None if no k is the limit."""
    if not absmax or not math.isfinite(absmax):
        return None
    k = math.floor(math.log2(FP16.overflow_threshold / absmax))
    return k if math.ldexp(absmax, k) < FP16.overflow_threshold else k - 1


@dataclass(frozen=True)
class ScaleWindow:
    """The exponents at which all layers fit, within a scaler's limits; empty if low > high."""

    low: int
    high: int

    @classmethod
    def of(cls, lows: Iterable[int | None], highs: Iterable[int | None]) -> ScaleWindow:
        """Return the overlap of all layers' windows."""
        low = max((k for k in lows if k is not None), default=MIN_EXPONENT)
        high = min((k for k in highs if k is not None), default=MAX_EXPONENT)
        return cls(max(low, MIN_EXPONENT), min(high, MAX_EXPONENT))

    @property
    def empty(self) -> bool:
        """True if no scale fits all layers."""
        return self.low > self.high

    @property
    def best(self) -> int:
        """The highest exponent with a margin: an overflow costs a step, an underflow only small values."""
        return max(min(self.high, MAX_EXPONENT) - MARGIN_BITS, MIN_EXPONENT)
