"""The range of every layer from a trace: its largest magnitude per step, and the loss scales that fit it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from halfguard.probing.scales import (
    ScaleWindow,
    add_counts,
    binade_counts,
    highest_exponent,
    lost_share,
    lowest_exponent,
    significant_values,
)
from halfguard.probing.shrink import is_inside
from halfguard.records.plan import ScaleRange
from halfguard.records.ranges import LayerRange, LayerStats, TraceStep

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
                forward_underflow=lost_share(one.outputs, 0),
                underflow_now=lost_share(one.gradients, now),
                underflow_best=lost_share(one.gradients, window.best),
                scale_low=None if low is None else 2.0**low,
                scale_high=None if high is None else 2.0**high,
            )
        )
    return tuple(ranges)
