"""Errors of torch and of scalers that a script catches, so that its steps end before anything is trained.

Exceptions that are caught leave no trace but one: Python's own trace function sees them in every frame that
they pass. Only frames of the user's files are traced, and none of their lines. A script without errors is
traced for a limited number of calls: an error that matters comes in most steps.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

import torch

from halfguard.investigation.advice import describe_place
from halfguard.investigation.bus import HookBus
from halfguard.investigation.detectors import OFTEN, Detector
from halfguard.investigation.made_places import is_own_file
from halfguard.investigation.misuse import Crash
from halfguard.investigation.passes import Made, Misused, PassPlan, Place
from halfguard.replaying.function_modes import user_place

_CALLS = 50_000  # of any function, after which a script without errors is not traced any more
_MARK = "_halfguard_seen"  # of an error that was counted where it arose


class HiddenError(Detector):
    """An exception of the scaler after which the script went on."""

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        self._seen: list[tuple[str, Place | None, int, Any]] = []  # with backward passes, optimizer

    def on_scaler_failed(self, optimizer: Any, error: Exception) -> None:
        of = None if optimizer is None else weakref.ref(optimizer)
        self._seen.append((str(error), user_place(), self.bus.backward, of))

    def on_scaler_done(self, _scaler: Any, optimizer: Any) -> None:
        """Forget errors before a complete step of the same optimizer: they were without effect."""
        self._seen = [
            one
            for one in self._seen
            if one[2] != self.bus.backward or (one[3] is not None and one[3]() is not optimizer)
        ]

    def found(self, made: Made, error: str) -> Iterator[Misused]:
        went_on = [
            (text, place)
            for text, place, backward, _ in self._seen
            if backward < self.bus.backward and Crash(text, place, made).advice
        ]
        if len(went_on) >= OFTEN and not error:
            hidden, place = went_on[0]
            crash = Crash(hidden, place, made)
            text = (
                f"The scaler raised {hidden!r} {len(went_on)} times. The script caught the error and "
                f"continued without completing these steps: {describe_place(place)}. {crash.advice}"
            )
            yield _hidden(text, crash)


class CaughtErrors(Detector):
    """Counts errors by the user's innermost line; those that end the script are none of them."""

    def __init__(self, bus: HookBus, plan: PassPlan) -> None:
        super().__init__(bus)
        self._folders = plan.isolated or plan.originals
        self._own: dict[str, bool] = {}
        self._seen: dict[Place, list[str]] = {}
        self._calls = 0
        sys.settrace(self._called)

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        self._calls += 1
        if self._calls > _CALLS and not self._seen:
            sys.settrace(None)
        file = frame.f_code.co_filename
        if file not in self._own:
            self._own[file] = is_own_file(file, self._folders)
        if not self._own[file]:
            return None
        frame.f_trace_lines = False
        return self._inside

    def _inside(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "exception" and torch.is_grad_enabled():
            _, error, trace = arg
            if (
                isinstance(error, Exception)
                and not hasattr(error, _MARK)
                and _is_torch(error, trace)
            ):
                setattr(error, _MARK, True)
                text = f"{type(error).__name__}: {' '.join(str(error).split())}"
                place = frame.f_code.co_filename, frame.f_lineno
                self._seen.setdefault(place, []).append(text)
        return self._inside

    def found(self, made: Made, error: str) -> Iterator[Misused]:
        place, texts = max(self._seen.items(), key=lambda one: len(one[1]), default=(None, []))
        few = len(texts) < self.bus.backward / 2 and len(texts) <= self.bus.steps
        if error or len(texts) < OFTEN or few:
            return
        crash = Crash(texts[0], place, made)
        text = (
            f"The script caught {texts[0]!r} {len(texts)} times and did not train in these steps "
            f"({self.bus.backward} backward passes ran): {describe_place(place)}. {crash.advice}"
        )
        yield _hidden(text.rstrip(), crash)


def _hidden(sentence: str, crash: Crash) -> Misused:
    place, code = crash.place, crash.code
    return Misused(
        kind="hidden error", sentence=sentence, place=place, error=crash.error, code=code
    )


def _is_torch(error: Exception, trace: TracebackType | None) -> bool:
    """Return whether torch raised an error: its kernels do so without a frame of their own.

    Private exceptions are no errors: with one, checkpointing leaves a recomputation that it needs no more of.
    """
    if type(error).__name__.startswith("_"):
        return False
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("torch."):
            return True
        trace = trace.tb_next
    return type(error) in (RuntimeError, NotImplementedError)
