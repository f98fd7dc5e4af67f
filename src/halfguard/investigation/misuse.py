"""Calls that train wrongly without a bad number: clipping of scaled gradients, a schedule that runs ahead."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.weak import WeakIdKeyDictionary

from halfguard.investigation.advice import describe_place
from halfguard.investigation.crashes import Crash
from halfguard.investigation.gradient_sources import GradientSources
from halfguard.investigation.passes import Made, Misused
from halfguard.investigation.training_loop import BackwardCall, TrainingLoop
from halfguard.replaying.function_modes import Place, user_place

_CLIPPINGS = ("clip_grad_norm_", "clip_grad_value_")
_SMALL = 0.01  # of the loss scale: a limit below it was not multiplied by the scale
_FEWEST_PENALTIES = _FEWEST_HIDDEN = 3
_FEWEST, _MOST_AHEAD = 5, 0.1  # moves, and their share of steps
_DEFAULT_SCALE = 2.0**16  # of a scaler; from there on it finds its level, which is not wrong


@dataclass
class _Hidden:
    """An exception of a scaler; the script went on if it has more backward passes."""

    error: str
    place: Place | None
    backward: int
    optimizer: weakref.ref[Any] | None

    def is_made_good(self, optimizer: Any, backward: int) -> bool:
        """Return whether a complete step of the optimizer follows, before a backward pass."""
        is_same = self.optimizer is None or self.optimizer() is optimizer
        return self.backward == backward and is_same


class Misuse:
    """Notes such calls, from the installation of its sensors on."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._sources = GradientSources(loop)
        self._clipped: tuple[Place, float, float] | None = None  # line, limit and loss scale
        self._schedule: Place | None = None
        self._ahead = 0  # moves of a schedule after a step that was skipped
        # Optimizers that a scaler has stepped.
        self._begun: MutableMapping[Any, bool] = WeakIdKeyDictionary()
        self._off: tuple[Place, str] | None = None  # a scaler that is off, and its device
        self._hidden: list[_Hidden] = []
        self._in_scaler = False  # one of its methods runs, which may call others
        self._penalty: Place | None = None  # gradients of a scaled loss that become a loss
        self._scaled_penalty = False  # since the last backward pass
        self._penalties = 0  # without a look at the scale
        self._reads = 0  # of the scale, until the last backward pass

    def install(self) -> None:
        """Put the sensors on torch; they stay for the life of the process."""
        for name in _CLIPPINGS:
            self._watch_clipping(name)
        self._watch_schedules()
        self._watch_scaler()
        self._sources.install()

    def before_backward(self, call: BackwardCall) -> None:
        """A backward pass is about to run."""
        self._sources.before_backward(call)
        if not call.accumulates:
            if call.scaler is not None and call.creates_graph:
                self._penalty, self._scaled_penalty = self._penalty or user_place(), True
        else:
            reads, self._reads = self._reads, self._loop.scaled_losses.reads
            self._penalties += self._scaled_penalty and self._reads == reads
            self._scaled_penalty = False

    def after_backward(self, call: BackwardCall) -> None:
        """A backward pass has run."""
        self._sources.after_backward(call)

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        self._sources.after_step(optimizer)

    def found(self, made: Made, error: str) -> tuple[Misused, ...]:
        """Return what is wrong, each with its line; ``error`` is the one that ended the script."""
        return (
            *self._found_calls(made),
            *self._sources.misused(),
            *self._found_off(made),
            *self._found_hidden(made, error),
        )

    def _found_calls(self, made: Made) -> Iterator[Misused]:
        if self._clipped is not None:
            place, limit, scale = self._clipped
            text = (
                f"Gradients were clipped to {limit:g} while they were still multiplied by the loss scale of "
                f"{scale:g}, so that almost nothing was left of them: {describe_place(place)}. Call "
                "scaler.unscale_(optimizer) before it, or let the framework clip."
            )
            yield Misused(kind="clipped", sentence=text, place=place)
        steps = self._loop.scaler_steps
        many = self._ahead >= _FEWEST and self._ahead > _MOST_AHEAD * steps
        if self._schedule is not None and many:
            made_at = describe_place(made.optimizer if made.fused else made.scaler)
            subject = "The optimizer is fused, and tells nobody that it" if made.fused else ""
            related = f"{subject or 'The scaler'} {'skips' if made.fused else 'was made at'}"
            text = (
                f"The schedule moved {self._ahead} times after a step that the scaler had skipped, in "
                f"{steps} steps: {describe_place(self._schedule)}. Move it only if the optimizer has stepped "
                "(scaler.get_scale() is not lower than before), or begin with a lower scale."
                + (f" {related}: {made_at}." if made_at else "")
            )
            yield Misused(kind="schedule", sentence=text, place=self._schedule)
        if self._penalty is not None and self._penalties >= _FEWEST_PENALTIES:
            text = (
                "Gradients of a scaled loss become a part of another loss, and are still multiplied by the "
                f"loss scale there: {describe_place(self._penalty)}. Divide them by scaler.get_scale()."
            )
            yield Misused(kind="penalty", sentence=text, place=self._penalty)

    def _found_off(self, made: Made) -> Iterator[Misused]:
        if self._off is not None and made.autocast_device and not self._loop.scaler:
            place, device = self._off
            text = (
                f"The scaler is for {device}, which is not here, so it does nothing, while autocast runs in "
                f"float16 on {made.autocast_device}: small gradients become 0. Make the scaler for that "
                f"device: {describe_place(place)}."
            )
            yield Misused(kind="scaler off", sentence=text, place=place)

    def _found_hidden(self, made: Made, error: str) -> Iterator[Misused]:
        went_on = [
            one
            for one in self._hidden
            if one.backward < self._loop.backward and Crash(one.error, one.place, made).advice
        ]
        if len(went_on) >= _FEWEST_HIDDEN and not error:
            one = went_on[0]
            text = (
                f"The scaler raised {one.error!r} {len(went_on)} times, and the script went on, without the "
                f"rest of these steps: {describe_place(one.place)}."
            )
            yield Misused(kind="hidden error", sentence=text, place=one.place, error=one.error)

    def _watch_scaler(self) -> None:
        scaler: Any = torch.amp.GradScaler
        for name in ("unscale_", "step", "update"):
            self._watch_errors(name)
        original = scaler.__init__
        signature = inspect.signature(original)

        @wraps(original)
        def __init__(one: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(one, *args, **kwargs)
            given = signature.bind(one, *args, **kwargs)
            given.apply_defaults()
            place = user_place()
            if given.arguments.get("enabled") and not one.is_enabled() and place is not None:
                self._off = place, str(given.arguments.get("device", "cuda"))

        scaler.__init__ = __init__

    def _watch_errors(self, name: str) -> None:
        """Note exceptions of a method of the scaler, and the sources of what it steps."""
        original: Any = getattr(torch.amp.GradScaler, name)

        @wraps(original)
        def call(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_scaler:  # step() calls unscale_()
                return original(scaler, *args, **kwargs)
            optimizer = args[0] if args and name != "update" else kwargs.get("optimizer")
            self._in_scaler = True
            try:
                if optimizer is not None:
                    self._sources.before_unscaling(scaler, optimizer)
                result = original(scaler, *args, **kwargs)
            except (RuntimeError, ValueError, AssertionError) as error:
                of = None if optimizer is None else weakref.ref(optimizer)
                self._hidden.append(_Hidden(str(error), user_place(), self._loop.backward, of))
                raise
            finally:
                self._in_scaler = False
                if name == "step":
                    self._sources.after_step(optimizer)
            if name == "step":
                self._completed(optimizer)
            return result

        setattr(torch.amp.GradScaler, name, call)

    def _completed(self, optimizer: Any) -> None:
        """A step of the scaler has returned: errors before it were without effect."""
        done = optimizer, self._loop.backward
        self._hidden = [one for one in self._hidden if not one.is_made_good(*done)]
        if not self._loop.was_skipped(optimizer):
            self._begun[getattr(optimizer, "optimizer", optimizer)] = True

    def _watch_clipping(self, name: str) -> None:
        original: Any = getattr(torch.nn.utils, name)
        signature = inspect.signature(original)

        @wraps(original)
        def clip(*args: Any, **kwargs: Any) -> Any:
            norm = original(*args, **kwargs)
            if self._clipped is None and self._loop.holds_scaled:
                limit = float(list(signature.bind(*args, **kwargs).arguments.values())[1])
                place, scale = user_place(), self._loop.scale
                cut = norm is None or not float(norm) <= limit
                if place is not None and cut and limit < _SMALL * scale:
                    self._clipped = place, limit, scale
            return norm

        setattr(torch.nn.utils, name, clip)

    def _watch_schedules(self) -> None:
        original: Any = LRScheduler.step

        @wraps(original)
        def step(schedule: LRScheduler, *args: Any, **kwargs: Any) -> None:
            optimizer = getattr(schedule.optimizer, "optimizer", schedule.optimizer)
            counts = optimizer in self._begun or self._loop.scale >= _DEFAULT_SCALE
            if counts and self._loop.was_skipped(schedule.optimizer):
                self._ahead += 1
                self._schedule = self._schedule or user_place()
            original(schedule, *args, **kwargs)

        setattr(LRScheduler, "step", step)  # noqa: B010
