"""Watch a run while it trains: one step in each interval is looked at from the inside.

A sampled step has two phases. In the first, every half operation is measured on the device, and the numbers
are read once at the end of its backward pass. Only if a line left the range of half that never did before,
the step is audited, which costs two to four steps. The update itself is not touched. Between sampled steps
there are no hooks, no modes and no reads.

All ranks sample the same steps, each looks at its own, and none waits for another. Rank 0 writes the journal;
a warning is logged by the rank that saw it.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from math import inf, isfinite
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from halfguard.dist.collectives import rank
from halfguard.dist.wrapping import unwrap_model
from halfguard.guard.config import GuardConfig, WatchConfig
from halfguard.guard.step_batches import StepBatches
from halfguard.guard.stepping.gate import Gate
from halfguard.guard.watching.operation_maxima import Maximum, OperationMaxima, Place
from halfguard.guard.watching.swallowed import Alarm, audit_step, can_audit
from halfguard.guard.watching.trends import Trends, layers_of, leaves_range, merge_calls
from halfguard.guard.watching.weight_updates import AHEAD, WeightUpdates
from halfguard.precision_names import PrecisionName
from halfguard.records.ranges import module_label
from halfguard.records.watch import (
    LayerUpdates,
    OverflowAhead,
    WatchRow,
    WatchWarning,
    WatchWarningKind,
)
from halfguard.tracing.operation_places import ModuleStack

# The steps that are sampled: one in each interval, at a place that looks random, the same on all
# ranks.
#
# A fixed distance may coincide with a period in the data, and then always meets the same kind of
# batch. The place is computed from the interval's number, so no random state is used or changed.


def sampled_step(interval: int, every: int) -> int:
    """Return the sampled step of the n-th interval of ``every`` steps."""
    return interval * every + zlib.crc32(f"halfguard {interval}".encode()) % every


class Sampling:
    """Tells at the start of each step whether to sample it.

    A step that was not applied shows nothing of use, so the next one is sampled in its place.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.interval = -1  # that has had its sample

    def is_due(self, step: int) -> bool:
        """Return whether to sample this step."""
        interval = step // self.every
        return interval > self.interval and step >= sampled_step(interval, self.every)

    def done(self, step: int) -> None:
        """Note that a step was sampled, and is of use."""
        self.interval = step // self.every


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
        f"A swallowed {found.fault} {_name(found.module)}: {found.op} at {found.place}: "
        f"{found.code}. The loss and gradients are finite but wrong: the loss by "
        f"{alarm.loss_error:.1%}, the gradients by {alarm.gradient_error:.1%}. Compute this line "
        "in FP32 with halfguard.fp32_island or .float()."
    )
    return WatchWarning(warning="swallowed", module=found.module, place=found.place, text=text)


def _overflow_ahead(ahead: OverflowAhead) -> WatchWarning:
    place = f"{ahead.file}:{ahead.line}" if ahead.file else ""
    where = f"{ahead.op} at {place}" if place else ahead.op
    text = (
        f"{where}, {_name(ahead.module)}, will overflow at about step {ahead.step} (not before "
        f"{ahead.earliest}) if the trend continues: its largest magnitude doubles every "
        f"{ahead.doubling:.0f} steps. Compute it in FP32 (halfguard.fp32_island), or look for the cause: a "
        "learning rate that is too high, or missing weight decay or normalization."
    )
    return WatchWarning(warning="overflow_ahead", module=ahead.module, place=place, text=text)


def _frozen(layer: LayerUpdates) -> WatchWarning:
    text = (
        f"The 16-bit weights of {module_label(layer.module)} will stop learning at about step "
        f"{layer.frozen_at}: from then on, 90% of their updates will be rounded away at the "
        f"scheduled learning rate (now {layer.lost:.0%}). Keep FP32 master weights "
        "(halfguard.MasterWeights), or train in mixed precision."
    )
    return WatchWarning(warning="updates_lost", module=layer.module, text=text)


logger = logging.getLogger("halfguard")

OnAlarm = Callable[[tuple[Alarm, ...], StepBatches], None]


class Watching:
    """Samples steps of a guard; ``write`` gets the row of each.

    ``alarms`` has all faults that audits have found so far. ``on_alarm(new, batches)`` is called after the
    update of the sampled step, between two steps, with the batches that show the fault.
    """

    def __init__(
        self,
        config: WatchConfig,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        write: Callable[[WatchRow], None],
    ) -> None:
        self.alarms: list[Alarm] = []
        self.on_alarm: OnAlarm | None = None
        self.audits = True  # a step that is suspicious is run again
        self.preserved: Callable[[], AbstractContextManager[None]] = nullcontext  # around an audit
        self._model = model
        self._write = write
        self._sampling = Sampling(config.every)
        self._ahead = max(AHEAD, 5 * config.every)
        self._trends = Trends()
        self._warnings = WatchWarnings()
        self._weights = WeightUpdates(unwrap_model(model), optimizers, schedulers)
        self._known: set[Place] = set()  # lines that have left the range, and were looked at
        self._harmless: set[Place] = set()
        self._hooks = ExitStack()
        self._maxima: OperationMaxima | None = None
        self._is_active = False  # a pass is measured

    @property
    def is_sampling(self) -> bool:
        """True during a sampled step."""
        return self._maxima is not None

    def begin(self, step: int) -> None:
        """Begin a step; if it is sampled, hooks are attached until ``updating`` or ``abandon``."""
        if self._sampling.is_due(step):
            self.abandon()
            modules = ModuleStack()
            model = _without_ddp(self._model)
            self._hooks.enter_context(modules.tracking(model, compiled=False))
            self._maxima = OperationMaxima(modules)

    @contextmanager
    def observing(self, outer: AbstractContextManager[Any] | None = None) -> Iterator[None]:
        """Measure a forward or a backward pass, if the step is sampled; ``outer`` is entered first."""
        with nullcontext() if outer is None else outer:
            if self._maxima is None or self._is_active:
                yield
                return
            self._is_active = True
            try:
                with self._maxima:
                    yield
            finally:
                self._is_active = False

    def abandon(self) -> None:
        """Forget the sampled step that is open, and remove its hooks."""
        self._maxima = None
        self._hooks.close()

    @contextmanager
    def updating(
        self, step: int, row: Tensor, batches: StepBatches, config: GuardConfig
    ) -> Iterator[None]:
        """Run the update of a sampled step; ``row`` has its measurements."""
        maxima, self._maxima = self._maxima, None
        self._hooks.close()
        if maxima is None:
            yield
            return
        found = maxima.read()
        loss, norm, fault, scale = Gate.read(row)[:4]
        if fault or not (isfinite(loss) and isfinite(norm)):  # the guard's own matter
            yield
            return
        alarms = self._audit_new(step, found, batches, config.precision, scale)
        with self._weights.measuring() as measured:
            yield
        self._sampling.done(step)
        by_place = merge_calls(found)
        self._trends.add(step, by_place, loss, norm)
        layers = layers_of(by_place, found, self._harmless)
        updates, early = self._weights.read(measured, step, self._ahead)
        forecasts = self._trends.forecasts()
        frozen = [one for one in updates if one.module in early]
        warnings = self._warnings.new(step, alarms, forecasts, frozen)
        for one in warnings:
            who = f" (rank {rank()})" if rank() else ""
            logger.warning("step %d%s: %s", step, who, one.text)
        self._write(
            WatchRow(
                step=step,
                scale=scale,
                layers=layers,
                updates=updates,
                forecasts=tuple(forecasts),
                warnings=warnings,
            )
        )
        if alarms and self.on_alarm is not None:
            self.on_alarm(alarms, batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the interval that has had its sample, and the lines that were looked at."""
        known = sorted(self._known, key=str)
        return {
            "interval": self._sampling.interval,
            "known": [[*place, place in self._harmless] for place in known],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of ``state_dict``; trends, and what was told, begin anew."""
        self._sampling.interval = state["interval"]
        self._known = {Place(*values[:-1]) for values in state["known"]}
        self._harmless = {Place(*values[:-1]) for values in state["known"] if values[-1]}

    def _audit_new(
        self,
        step: int,
        found: Sequence[Maximum],
        batches: StepBatches,
        precision: PrecisionName,
        scale: float,
    ) -> tuple[Alarm, ...]:
        """Audit the step if a new line left the range of half; return what is wrong."""
        new = {one.place for one in found if leaves_range(one)} - self._known
        if not new or not self.audits or not can_audit(self._model, batches):
            return ()
        report = audit_step(self._model, batches, precision, scale, self.preserved)
        if report is None:
            return ()
        self._known |= new
        told = {(alarm.finding.place, alarm.finding.op) for alarm in self.alarms}
        places = {(one.file, one.line) for one in report.findings}
        self._harmless |= {place for place in new if (place.file, place.line) not in places}
        alarms = tuple(
            Alarm(step, one, report.loss_error, report.gradient_error)
            for one in report.findings
            if (one.place, one.op) not in told
        )
        self.alarms += alarms
        return alarms


def _without_ddp(model: nn.Module) -> nn.Module:
    while isinstance(model, DistributedDataParallel):
        model = model.module
    return model
