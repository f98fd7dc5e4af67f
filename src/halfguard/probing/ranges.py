"""The range of every layer from a trace: its largest magnitude per step, and the loss scales that fit it.

A loss scale of 2**k moves every gradient k binades up. FP16 holds the binades -24 to 15, so one histogram of
exponents answers for all scales at once: the highest k at which the largest gradient stays below 65520, and
the lowest at which no more than a given share of the gradients falls below 2**-25 and is rounded to zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from halfguard.formats import FP16
from halfguard.numerics.histogram import HIGHEST, LOWEST, bin_index
from halfguard.records.plan import ScaleRange
from halfguard.records.ranges import LayerRange, LayerStats, TraceStep
from halfguard.step.parameters import is_inside

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


_GRADIENTS = ("grad_output", "param_grad")


@dataclass
class ModuleTotals:
    """One module over all steps: its largest magnitude per step, and counts of values per binade."""

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    outputs: dict[int, int] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    significant: dict[int, int] = field(default_factory=dict)  # gradients that a scale must keep

    @property
    def largest_gradient(self) -> float:
        """The largest finite gradient of all steps."""
        return max((value for value in self.backward if math.isfinite(value)), default=0.0)


Totals = Mapping[str, ModuleTotals]


def total_by_module(trace: Sequence[TraceStep], scales: Sequence[float]) -> dict[str, ModuleTotals]:
    """Return totals by module, in the order in which modules ran; gradients without the loss scale."""
    totals: dict[str, ModuleTotals] = {}
    for step, scale in zip(trace, scales, strict=False):
        shift = round(math.log2(scale))
        by_module: dict[str, list[LayerStats]] = {}
        for stats in step.layers:
            by_module.setdefault(stats.module, []).append(stats)
        for module, rows in by_module.items():
            outputs = [row for row in rows if row.place == "output"]
            grads = [row for row in rows if row.place in _GRADIENTS]
            one = totals.setdefault(module, ModuleTotals())
            one.forward.append(_largest(outputs))
            one.backward.append(_largest(grads) / scale)
            one.outputs = add_counts([one.outputs, *(binade_counts(row.bins) for row in outputs)])
            counts = [binade_counts(row.bins, shift) for row in grads]
            one.gradients = add_counts([one.gradients, *counts])
            one.significant = add_counts([one.significant, *map(significant_values, counts)])
    return totals


def _largest(rows: Sequence[LayerStats]) -> float:
    values = [row.absmax for row in rows]
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def without_repeated_outputs(totals: Totals) -> dict[str, ModuleTotals]:
    """Return the totals without containers that return the output of a child: one row is enough."""
    kept = {}
    for module, one in totals.items():
        inner = [other for path, other in totals.items() if is_inside(path, module)]
        # As text, because NaN is not equal to itself.
        text = repr(one.forward)
        if not any(o.outputs == one.outputs and repr(o.forward) == text for o in inner):
            kept[module] = one
    return kept


def find_scale_window(totals: Totals, allowed: float) -> ScaleWindow:
    """Return the loss scales at which every layer fits."""
    lows = [lowest_exponent(one.significant, allowed) for one in totals.values()]
    highs = [highest_exponent(one.largest_gradient) for one in totals.values()]
    return ScaleWindow.of(lows, highs)


def to_scale_range(window: ScaleWindow) -> ScaleRange | None:
    """Return the window as a record, or None if it is empty."""
    if window.empty:
        return None
    best = max(window.best, window.low)
    return ScaleRange(low=2.0**window.low, high=2.0**window.high, best=2.0**best)


def make_layer_ranges(
    totals: Totals, model: nn.Module, window: ScaleWindow, scale: float, allowed: float
) -> tuple[LayerRange, ...]:
    """Return one record per layer."""
    kinds = {path: type(module).__name__ for path, module in model.named_modules()}
    now = round(math.log2(scale))
    ranges = []
    for module, one in totals.items():
        low = lowest_exponent(one.significant, allowed)
        high = highest_exponent(one.largest_gradient)
        ranges.append(
            LayerRange(
                module=module,
                kind=kinds.get(module, ""),
                forward=tuple(one.forward),
                backward=tuple(one.backward),
                underflow_now=lost_share(one.gradients, now),
                underflow_best=lost_share(one.gradients, window.best),
                scale_low=None if low is None else 2.0**low,
                scale_high=None if high is None else 2.0**high,
            )
        )
    return tuple(ranges)
