"""From a trace to the range of every layer: largest magnitudes by step, and which loss scales fit it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from halfguard.probing.scales import (
    Window,
    added,
    binades,
    highest_exponent,
    lost_share,
    lowest_exponent,
    weighty,
)
from halfguard.records.plan import ScaleRange
from halfguard.records.ranges import LayerRange
from halfguard.records.trace import LayerStats, TraceStep

_GRADIENTS = ("grad_output", "param_grad")


@dataclass
class Sums:
    """One module over all steps: magnitudes by step, and counts by binade."""

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    outputs: dict[int, int] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    weighty: dict[int, int] = field(default_factory=dict)  # the gradients that a scale must keep

    @property
    def top(self) -> float:
        """The largest finite gradient of all steps."""
        return max((value for value in self.backward if math.isfinite(value)), default=0.0)


def gather(trace: Sequence[TraceStep], scales: Sequence[float]) -> dict[str, Sums]:
    """Sum the trace up by module, in the order in which modules ran; gradients without the loss scale."""
    sums: dict[str, Sums] = {}
    for step, scale in zip(trace, scales, strict=False):
        shift = round(math.log2(scale))
        by_module: dict[str, list[LayerStats]] = {}
        for stats in step.layers:
            by_module.setdefault(stats.module, []).append(stats)
        for module, rows in by_module.items():
            outputs = [row for row in rows if row.place == "output"]
            grads = [row for row in rows if row.place in _GRADIENTS]
            one = sums.setdefault(module, Sums())
            one.forward.append(_largest(outputs))
            one.backward.append(_largest(grads) / scale)
            one.outputs = added([one.outputs, *(binades(row.bins) for row in outputs)])
            counts = [binades(row.bins, shift) for row in grads]
            one.gradients = added([one.gradients, *counts])
            one.weighty = added([one.weighty, *map(weighty, counts)])
    return sums


def _largest(rows: Sequence[LayerStats]) -> float:
    values = [row.absmax for row in rows]
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def without_echoes(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    """Leave out a container that returns what its last child returned: one row says it all."""
    kept = {}
    for module, one in sums.items():
        prefix = f"{module}." if module else ""
        inner = [
            other for path, other in sums.items() if path != module and path.startswith(prefix)
        ]
        if not any(_same(one, other) for other in inner):
            kept[module] = one
    return kept


def _same(a: Sums, b: Sums) -> bool:
    # repr: NaN is equal to itself there.
    return a.outputs == b.outputs and repr(a.forward) == repr(b.forward)


def window_of(sums: Mapping[str, Sums], allowed: float) -> Window:
    """The loss scales at which every layer fits."""
    lows = [lowest_exponent(one.weighty, allowed) for one in sums.values()]
    highs = [highest_exponent(one.top) for one in sums.values()]
    return Window.of(lows, highs)


def as_scale_range(window: Window) -> ScaleRange | None:
    """The window as a record, or None if it is empty."""
    if window.empty:
        return None
    best = max(window.best, window.low)
    return ScaleRange(low=2.0**window.low, high=2.0**window.high, best=2.0**best)


def layer_ranges(
    sums: Mapping[str, Sums], model: nn.Module, window: Window, scale: float, allowed: float
) -> tuple[LayerRange, ...]:
    """One record a layer."""
    kinds = {path: type(module).__name__ for path, module in model.named_modules()}
    now = round(math.log2(scale))
    ranges = []
    for module, one in sums.items():
        low, high = lowest_exponent(one.weighty, allowed), highest_exponent(one.top)
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
