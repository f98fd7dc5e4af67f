"""Crashes by an error of torch that is known: the line that it goes back to, and what to change there."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

from halfguard.investigation.advice import describe_place
from halfguard.investigation.cures import untried
from halfguard.investigation.made_places import is_own_file
from halfguard.investigation.passes import Made, Place
from halfguard.records.autopsy import Cure
from halfguard.repairs.call_in_fp32 import call_in_fp32
from halfguard.repairs.float_arguments import float_arguments
from halfguard.repairs.fp32_parameters import fp32_parameters
from halfguard.repairs.fp32_weights import fp32_weights
from halfguard.repairs.keywords import switch_on
from halfguard.repairs.load_if_not_empty import load_if_not_empty
from halfguard.repairs.optimizer_last import is_returned, optimizer_last
from halfguard.repairs.smallest_number import smallest_number
from halfguard.repairs.unscale_once import unscale_once
from halfguard.repairs.update_after_step import update_after_step
from halfguard.repairs.update_before_continue import update_before_continue

_PLACE = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class Crash:
    """An exception that ended a script, the user's innermost line, and what the script has made."""

    error: str
    place: Place | None
    made: Made

    @property
    def advice(self) -> str:
        """What to change, if the error is known; nothing of it was tested."""
        return next(
            (advise(self) for pattern, _, advise in _KNOWN if re.search(pattern, self.error)), ""
        )

    @property
    def code(self) -> str:
        """The code of the failure, if the error is known."""
        return next((code for pattern, code, _ in _KNOWN if re.search(pattern, self.error)), "")

    @property
    def is_of_scaler(self) -> bool:
        """Return whether the scaler was called in a wrong order: no number is to blame."""
        return bool(re.search(f"{_TWICE}|{_NO_STEP}|{_NOT_REACHED}", self.error))

    def cures(self) -> list[Cure]:
        """Return patches that may cure it; a run of the patched script has to show that."""
        found = [untried(self.advice, patch, self.code) for patch in self._patches() if patch]
        return [*self._named(), *found]

    def _named(self) -> Iterator[Cure]:
        """Yield cures whose line is another than that of the advice."""
        if re.search(_TWICE, self.error):
            patch, places = update_before_continue.with_places(self.made.scaling)
            if patch:
                yield untried(
                    f"The loop goes on without scaler.update() at {describe_place(places[0])}, so that the "
                    "next iteration unscales the same step again. Step and update the scaler in every "
                    "iteration; it skips bad steps by itself.",
                    patch,
                    "HG302",
                )
        if re.search(_NOT_REACHED, self.error) and self.made.optimizer is not None:
            lines = (self.made.optimizer, *self.made.optimizer_callers)
            named = next((one for one in lines if not is_returned(one)), None)
            patch, places = optimizer_last.with_places(named)
            if patch:
                text = f"{self.advice} Its statement is moved: {describe_place(places[0])}."
                yield untried(text, patch, self.code)

    def _patches(self) -> Iterator[str]:
        made, place = self.made, self.place
        if place is not None:
            if re.search(_TWICE, self.error):
                yield unscale_once(place)
            if re.search(_NO_STEP, self.error):
                yield update_after_step(place)
            if re.search(_CONSTANT, self.error):
                yield smallest_number(place, "float16")
            if re.search(_EMPTY_STATE, self.error):
                yield load_if_not_empty(place)
        if re.search(f"{_FP16_GRADIENTS}|{_DTYPES}", self.error):
            yield from fp32_weight_patches(made)
        if re.search(_FP16_GRADIENTS, self.error):
            yield switch_on(place, "autocast_adapter_dtype", anywhere=True)
            yield fp32_parameters(made.optimizer)
        if re.search(_DTYPES, self.error) and place is not None:
            yield float_arguments(place, self.error)
        kernel = re.search(_NO_KERNEL, self.error)
        if kernel is not None and place is not None:
            ways = (call_in_fp32(place, kernel[1], index) for index in count())
            yield from takewhile(bool, ways)


def fp32_weight_patches(made: Made) -> Iterator[str]:
    """Yield patches that keep weights in FP32: under autocast in the dtype that they had, and without it."""
    for dtype in (made.half_dtype, None) if made.half_dtype else (None,):
        yield fp32_weights(made.half_weights, dtype, made.half_callers)


def crash_place(log: str, folders: Sequence[Path]) -> Place | None:
    """Return the innermost line of a file of the user, from the traceback in a log."""
    places = [(file, int(line)) for file, line in _PLACE.findall(log)]
    roots = tuple(map(str, folders))
    own = [place for place in places if is_own_file(place[0], roots)]
    return own[-1] if own else None


def with_place(log: str, place: Place | None) -> str:
    """Return the end of a traceback with the user's innermost line, which may be far above."""
    shown = "" if place is None else f'  File "{place[0]}", line {place[1]}'
    if place is None or re.search(rf"{re.escape(shown)}\b", log):
        return log
    return f"{shown}\n    {linecache.getline(*place).strip()}\n  ...\n{log}"


def _half_weights(crash: Crash) -> str:
    half = describe_place(crash.made.half_weights or crash.made.half_module)
    told = f" They became half at {half}." if half else ""
    caller = next(iter(crash.made.half_callers), None)
    return f"{told} That line was called at {describe_place(caller)}." if caller else told


def _fp16_gradients(crash: Crash) -> str:
    return (
        "A GradScaler needs FP32 weights: it refuses to unscale gradients that are half. Keep the weights in "
        f"FP32, and run the model under torch.autocast.{_half_weights(crash)}"
    )


def _different_dtypes(crash: Crash) -> str:
    return (
        "Half weights met FP32 numbers outside of autocast. Keep the weights in FP32, and run the model "
        f"under torch.autocast; or cast the inputs.{_at(crash)}{_half_weights(crash)}"
    )


def _not_reached(crash: Crash) -> str:
    optimizer, copied = describe_place(crash.made.optimizer), describe_place(crash.made.copied)
    return (
        "No parameter of this optimizer has a gradient. It may hold other tensors than the model that was "
        "trained, which was copied, replaced or wrapped later (then make the optimizer last); or gradients "
        "were set to None before the step; or all of its parameters are frozen."
        + (f" It was made at {optimizer}." if optimizer else "")
        + (f" A model was copied after that at {copied}." if copied else "")
    )


def _no_step(crash: Crash) -> str:
    return (
        "scaler.update() was called without a scaler.step() before it: call both once, after the last "
        f"micro-batch of a step.{_at(crash)}"
    )


def _unscaled_twice(crash: Crash) -> str:
    return (
        "Gradients are unscaled once per step: call scaler.unscale_(optimizer) (a clipping of Accelerate "
        f"does it too) only after the last micro-batch, and scaler.update() after every step.{_at(crash)}"
    )


def _empty_state(crash: Crash) -> str:
    return (
        "The checkpoint has no state of a scaler: it was written by a run without one, or whose scaler was "
        f"off. Load the state only if there is one.{_at(crash)}"
    )


def _constant(crash: Crash) -> str:
    return (
        "A constant does not fit half, whose smallest is -65504: write torch.finfo(torch.float16).min, or "
        f"compute the line in FP32.{_at(crash)}"
    )


def _no_kernel(crash: Crash) -> str:
    found = re.search(_NO_KERNEL, crash.error)
    kernel, dtype = ("", "half") if found is None else found.groups()
    return (
        f"torch has no {kernel} for {dtype} here: compute it in FP32, with .float() on what it is given."
        f"{_at(crash)}"
    )


def _at(crash: Crash) -> str:
    place = describe_place(crash.place)
    return f" The line is {place}." if place else ""


_FP16_GRADIENTS = "Attempting to unscale FP16 gradients"
_NOT_REACHED = "No inf checks were recorded for this optimizer"
_NO_STEP = "No inf checks were recorded prior to update"
_TWICE = r"(unscale_|step)\(\) has already been called"
_EMPTY_STATE = "source state dict is empty, possibly because it was saved from a disabled"
_CONSTANT = "Half without overflow"
# Of Linear and of convolutions; with other dtypes half is not to blame.
_DTYPES = r"same dtype.*(Half|BFloat16)|type .*(Half|BFloat16).* should be the same"
_NO_KERNEL = r'"([^"]*)" not implemented for .(Half|BFloat16)\b'
_KNOWN: tuple[tuple[str, str, Callable[[Crash], str]], ...] = (
    (_FP16_GRADIENTS, "HG401", _fp16_gradients),
    (_CONSTANT, "HG101", _constant),
    (_NOT_REACHED, "HD106", _not_reached),
    (_NO_STEP, "HG303", _no_step),
    (_TWICE, "HG202", _unscaled_twice),
    (_EMPTY_STATE, "HG312", _empty_state),
    (_DTYPES, "HD110", _different_dtypes),
    (_NO_KERNEL, "HD100", _no_kernel),
)
