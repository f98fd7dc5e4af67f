"""The first pass: the script at nearly full speed, until a number is bad.

An event is the first of: a loss that is not finite before it is scaled; gradients that are not finite, if no
scaler expects that; parameters that are not finite after a step; a loss that the script itself looks at and
may skip; an exception; and a loss scale that collapses. Gradients that were bad before a backward pass are
not its doing.

A loss scale begins too large and is lowered by overflows: that is how it is calibrated, and no event. It is
one if the scale falls below 1, if 20 skips come in a row, if the script ends in a streak, or crashes in one.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from halfguard.investigation.bus import BackwardCall, HookBus, first_number
from halfguard.investigation.caught_errors import HiddenError
from halfguard.investigation.detectors import (
    Detector,
    NewScalers,
    ScaledPenalty,
    ScalerOff,
    ScheduleAhead,
    WrongGradients,
)
from halfguard.investigation.made_places import MadePlaces
from halfguard.investigation.numpy_errors import BadRate, NumpyErrors
from halfguard.investigation.passes import (
    Ended,
    Event,
    EventKind,
    PassPlan,
    PassResult,
    ScalerFacts,
    leave,
    write_losses,
    write_progress,
)
from halfguard.investigation.silent_faults import (
    DividedTwice,
    EarlyUnscaling,
    HalfMoments,
    StaleCasts,
    ZeroGradients,
)
from halfguard.investigation.working_copy import Surroundings
from halfguard.numerics.finite import bad_tensors, storages
from halfguard.precision.modes import HALF_DTYPES
from halfguard.replaying.function_modes import user_place
from halfguard.step.parameters import parameters_of

DETECTORS: tuple[type[Detector], ...] = (  # of every step; an audit has others
    *(WrongGradients, NewScalers, ScheduleAhead, ScaledPenalty, ScalerOff, HiddenError),
    *(EarlyUnscaling, StaleCasts, DividedTwice, HalfMoments, ZeroGradients),
)
MOST_IN_A_ROW = 20
USUAL_SCALE = (
    2.0**16
)  # torch's initial one; a script may begin with a far larger one, and skip its way down
AT_THE_END = 3  # skips in a row, after a step that was applied
NEVER_APPLIED = 10  # skips in a row, if no step was ever applied


@dataclass
class SkipRule:
    """Counts skipped steps."""

    skips: int = 0
    streak: int = 0
    applied: int = 0
    first: float = math.inf  # the loss scale at the first overflow

    def good(self) -> None:
        """Count a backward pass without overflow."""
        self.streak = 0
        self.applied += 1

    def overflow(self, scale: float, *, each_steps: bool = True) -> str:
        """Count an overflow; return why it is an event, or an empty string.

        Each backward pass is one step, or several are accumulated, or the script leaves out the step itself.
        """
        if not self.skips:
            self.first = scale
        self.skips += 1
        self.streak += 1
        begins_below = self.first < 1 and not self.applied  # it finds its level there
        if scale < min(1, self.first) and not begins_below:
            return f"the loss scale fell to {scale:g} and the gradients were still NaN or Inf"
        calibrates = not self.applied and scale > USUAL_SCALE
        if self.streak >= MOST_IN_A_ROW and not calibrates:
            what = f"{self.streak} backward passes in a row overflowed"
            what = f"{self.streak} steps in a row were skipped" if each_steps else what
            return f"{what}; the loss scale is {scale:g}"
        return ""

    def at_end(self, *, crashed: bool) -> str:
        """Return why the streak in which the script ended is an event, or an empty string."""
        if crashed and self.streak:
            return "the script crashed after a step that was skipped"
        if self.streak >= (AT_THE_END if self.applied else NEVER_APPLIED):
            return f"the last {self.streak} steps were skipped"
        return ""


MOST_LOSSES = 1_000_000
_INTERVAL = 0.5  # seconds between two reports


class Sensing:
    """Watches a loop for the first event."""

    def __init__(self, plan: PassPlan, bus: HookBus, surroundings: Surroundings) -> None:
        self._plan, self._bus, self._surroundings = plan, bus, surroundings
        self._rule = SkipRule()
        self._losses: list[float] = []
        self._stale: set[int] = set()  # storages of gradients that were bad before
        self._overflowed = False  # the last backward pass was one that a scaler expects
        self._last_skip: Event | None = None
        self._looked: Event | None = None
        self._stepped: torch.optim.Optimizer | None = None  # the last one
        self._never_good: set[int] | None = None  # storages of parameters that were bad at first
        self._scales = ScalerFacts()
        self._scalers, self._scaler_count = weakref.WeakSet[Any](), 0
        self._started, self._busy = time.monotonic(), time.process_time()
        self._due = 0.0  # when the next report is
        self._detectors = [make(bus) for make in DETECTORS]
        self._made = MadePlaces(plan)
        self._numpy, self._rate = NumpyErrors(), BadRate()
        self._numpy.watch()
        bus.listen(*self._detectors, self._made, self._rate, self)

    def on_backward(self, call: BackwardCall) -> None:
        if not call.accumulates:
            return
        with self._bus.unobserved():
            loss = first_number(call.losses) / call.divisor
            bad = not math.isfinite(loss) and bad_tensors(call.losses)
            if len(call.losses) > 1:
                bad = bad or bad_tensors(call.losses[1:])
            if self._never_good is None:
                self._never_good = storages(bad_tensors(self._bus.parameters))
                self._made.note_buffers()
        if len(self._losses) < MOST_LOSSES:
            self._losses.append(loss)
        if bad:
            self._found("loss", "the loss was NaN or Inf when its backward pass started")
        if self._plan.every_step and self._are_broken(self._bus.parameters):
            self._found("parameters", "parameters were NaN or Inf before a backward pass")

    def on_backward_done(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        with self._bus.unobserved():
            bad = bad_tensors(gradients)
            stale, self._stale = self._stale, storages(bad)
            new = [g for g in bad if g.untyped_storage()._cdata not in stale]
        self._overflowed = bool(bad) and call.scaled
        if new and not call.scaled:
            self._found("gradients", "gradients were NaN or Inf after a backward pass", done=1)
        elif call.scaled:
            self._note_scale()
            if new:
                self._skipped()
            elif call.accumulates and not bad:
                self._rule.good()

    def on_scaled(self, scaler: Any) -> None:
        self._scaler_count += scaler not in self._scalers
        self._scalers.add(scaler)

    def _note_scale(self) -> None:
        scale, before = self._bus.scale, self._scales
        first = before.first if before.used else scale
        self._scales = ScalerFacts(used=True, first=first, last=scale)

    def _skipped(self) -> None:
        self._last_skip = self._event("scale", "")
        why = self._rule.overflow(self._scales.last, each_steps=self._each_steps())
        if why:
            self._found("scale", why, done=1)

    def _each_steps(self) -> bool:
        """Return whether the scaler has stepped after each backward pass but the last."""
        return self._bus.scaler_steps >= self._bus.backward

    def on_backward_failed(self, error: RuntimeError) -> None:
        if "nan values" in str(error):  # torch.autograd.detect_anomaly
            self._found("gradients", "detect_anomaly found NaN in the backward pass")

    def on_step_begins(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _INTERVAL
            write_progress(self._plan.answer, self._result("interrupted"))

    def on_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        # A step breaks half weights soon. FP32 ones are looked at only when a loss is bad. If they were not
        # used in between, a pass that looks at every step is run afterwards.
        self._stepped = optimizer
        every = self._plan.every_step
        looked_at = (p for p in parameters_of(optimizer) if every or p.dtype in HALF_DTYPES)
        if self._are_broken(looked_at):
            how = f"parameters were NaN or Inf after {type(optimizer).__name__}.step()"
            self._found("parameters", how, backward=max(0, self._bus.backward - 1))
        if self._plan.steps is not None and self._bus.steps + 1 >= self._plan.steps:
            self._bus.steps += 1
            self._leave(self._result("steps", event=self._broken()))

    def _are_broken(self, parameters: Iterable[Tensor]) -> bool:
        """Return whether some are bad that were good at first."""
        with self._bus.unobserved():
            bad = bad_tensors(parameters)
            return bool(storages(bad) - (self._never_good or set()))

    def _broken(self) -> Event | None:
        """Return the event of parameters that a step broke: the last one, as far as is known; or None."""
        if self._stepped is None:
            return None
        if not self._are_broken([*parameters_of(self._stepped), *self._bus.parameters]):
            return None
        finite = [loss for loss in self._losses[-2:] if math.isfinite(loss)]
        return Event(
            kind="parameters",
            backward=max(0, self._bus.backward - 1),
            step=max(0, self._bus.steps - 1),
            how=f"parameters were NaN or Inf after {type(self._stepped).__name__}.step()",
            loss=finite[-1] if finite else math.nan,
            scale=self._bus.scale,
        )

    def on_scaler_failed(self, optimizer: torch.optim.Optimizer | None, _error: Exception) -> None:
        self._stepped = getattr(optimizer, "optimizer", optimizer) or self._stepped

    def on_looked(self, tensor: Tensor, how: str) -> None:
        if self._plan.patched:  # the patch may look, to leave out the batch
            return
        place = user_place()
        where = "" if place is None else f" at {place[0]}:{place[1]}"
        how = f"the script read NaN or Inf with {how}{where}"
        if tensor.requires_grad:
            self._found("loss", how)
        elif self._looked is None and not self._overflowed:
            self._looked = self._event("looked", how)

    def on_finished(self, error: str, ended: Ended) -> NoReturn:
        event = self._broken()
        why = self._rule.at_end(crashed=bool(error))
        if event is not None:
            pass
        elif why and self._last_skip is not None:
            event = self._last_skip.model_copy(update={"how": why})
        elif error:
            event = self._event("exception", f"the script raised {error.splitlines()[0][:200]}")
        elif self._looked is not None:
            event = self._looked
        self._leave(self._result(ended, event=event, error=error))

    def _event(self, kind: EventKind, how: str, *, backward: int | None = None) -> Event:
        return Event(
            kind=kind,
            backward=self._bus.backward if backward is None else backward,
            step=self._bus.steps,
            how=how,
            loss=self._losses[-1] if self._losses else math.nan,
            scale=self._bus.scale,
            place=user_place(),
        )

    def _found(
        self, kind: EventKind, how: str, *, backward: int | None = None, done: int = 0
    ) -> NoReturn:
        """End the pass; ``done`` backward passes are finished, but not counted yet."""
        event = self._broken() if kind == "loss" else None
        event = event or self._event(kind, how, backward=backward)
        result = self._result("event", event=event)
        self._leave(result.model_copy(update={"backward": result.backward + done}))

    def _result(self, ended: Ended, *, event: Event | None = None, error: str = "") -> PassResult:
        return PassResult(
            ended=ended,
            error=error,
            event=event,
            backward=self._bus.backward,
            steps=self._bus.steps,
            seconds=time.monotonic() - self._started,
            busy=time.process_time() - self._busy,
            loss=self._losses[-1] if self._losses else math.nan,
            scaler=self._scales.model_copy(
                update={
                    "skips": self._rule.skips,
                    "count": self._scaler_count,
                    "each_steps": self._each_steps(),
                }
            ),
            workers=self._bus.workers,
            spawns=self._surroundings.spawns,
            autocast_off=self._surroundings.autocast_off,
            regions=self._surroundings.regions,
            outside=self._surroundings.effects,
            casts=tuple(self._bus.casts),
            numpy=tuple(self._numpy.places.items()),
            rate=self._rate.reason,
        )

    def _leave(self, result: PassResult) -> NoReturn:
        write_losses(self._plan.losses, self._losses)
        made = self._made.facts(self._stepped or next(iter(self._bus.optimizers), None))
        misuse = tuple(one for d in self._detectors for one in d.found(made, result.error))
        if result.event is None and not result.error:
            with self._bus.unobserved():
                misuse += tuple(self._made.bad_buffers(made))
        facts = {"made": made, "misuse": misuse}
        leave(self._plan.answer, result.model_copy(update=facts))
