"""The warnings of the watch: each place once, in words that say what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from halfguard.guard.watching.swallowed import Alarm
from halfguard.records.ranges import module_label
from halfguard.records.watch import LayerUpdates, OverflowAhead, WatchWarning, WatchWarningKind


class WatchWarnings:
    """Makes warnings, and remembers which were given."""

    def __init__(self) -> None:
        self._told: set[tuple[WatchWarningKind, str | None, str]] = set()
        self._announced = inf  # the earliest step of an overflow that was announced

    def new(
        self,
        step: int,
        alarms: Iterable[Alarm],
        forecasts: Sequence[OverflowAhead],
        frozen: Iterable[LayerUpdates],
    ) -> tuple[WatchWarning, ...]:
        """Return those that were not given before; of the forecasts, which come in order, the next one.

        One layer that drifts makes many lines drift. Another is announced only if it will overflow before.
        """
        if self._announced < step:  # that overflow is over, or was healed
            self._announced = inf
        ahead = [one for one in forecasts[:1] if one.step < self._announced]
        self._announced = min([self._announced, *(one.earliest for one in ahead)])
        found = [*map(_swallowed, alarms), *map(_overflow_ahead, ahead), *map(_frozen, frozen)]
        return tuple(self._first_time(found))

    def _first_time(self, warnings: Iterable[WatchWarning]) -> Iterator[WatchWarning]:
        for one in warnings:
            key = (one.warning, one.module, one.place)
            if key not in self._told:
                self._told.add(key)
                yield one


def _name(module: str | None) -> str:
    return "outside the model" if module is None else f"in {module_label(module)}"


def _swallowed(alarm: Alarm) -> WatchWarning:
    found = alarm.finding
    text = (
        f"{found.fault} that the step swallowed, {_name(found.module)}: {found.op} at {found.place}: "
        f"{found.code}. Loss and gradients are finite and wrong: the loss by {alarm.loss_error:.1%}, the "
        f"gradients by {alarm.gradient_error:.1%}. Compute this line in FP32: "
        "halfguard.fp32_island, or .float() before it."
    )
    return WatchWarning(warning="swallowed", module=found.module, place=found.place, text=text)


def _overflow_ahead(ahead: OverflowAhead) -> WatchWarning:
    place = f"{ahead.file}:{ahead.line}" if ahead.file else ""
    where = f"{ahead.op} at {place}" if place else ahead.op
    text = (
        f"{where}, {_name(ahead.module)}, will overflow at about step {ahead.step} (not before "
        f"{ahead.earliest}) if its trend continues: its largest magnitude doubles every {ahead.doubling:.0f} "
        "steps. Compute it in FP32 (halfguard.fp32_island), or look for the reason: a learning rate that is "
        "too high, missing weight decay or normalization."
    )
    return WatchWarning(warning="overflow_ahead", module=ahead.module, place=place, text=text)


def _frozen(layer: LayerUpdates) -> WatchWarning:
    text = (
        f"The 16-bit weights of {module_label(layer.module)} stop to learn at about step {layer.frozen_at}: "
        f"from there on 90% of their updates round to nothing at the scheduled learning rate (now "
        f"{layer.lost:.0%}). Keep FP32 masters (halfguard.MasterWeights), or train in mixed precision."
    )
    return WatchWarning(warning="updates_lost", module=layer.module, text=text)
