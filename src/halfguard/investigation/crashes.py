"""Crashes by an error of torch that is known: the line that it goes back to, and what to change there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from halfguard.investigation import source_patches as patches
from halfguard.investigation import value_patches
from halfguard.investigation.advice import describe_place
from halfguard.investigation.cures import untried
from halfguard.investigation.made_places import is_own_file
from halfguard.investigation.passes import Made, Place
from halfguard.records.autopsy import Cure

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
        for pattern, advise in _KNOWN:
            if re.search(pattern, self.error):
                return advise(self)
        return ""

    def cures(self) -> list[Cure]:
        """Return patches that may cure it; a run of the patched script has to show that."""
        return [untried(self.advice, patch) for patch in self._patches() if patch]

    def _patches(self) -> Iterator[str]:
        if re.search(f"{_FP16_GRADIENTS}|{_DTYPES}", self.error):
            yield patches.keep_weights_in_fp32(self.made.half_weights, "float16")
        if re.search(_CONSTANT, self.error) and self.place is not None:
            yield value_patches.write_smallest_number(self.place, "float16")


def crash_place(log: str, folders: Sequence[Path]) -> Place | None:
    """Return the innermost line of a file of the user, from the traceback in a log."""
    places = [(file, int(line)) for file, line in _PLACE.findall(log)]
    roots = tuple(map(str, folders))
    own = [place for place in places if is_own_file(place[0], roots)]
    return own[-1] if own else None


def _half_weights(crash: Crash) -> str:
    half = describe_place(crash.made.half_weights)
    return f" They became half at {half}." if half else ""


def _fp16_gradients(crash: Crash) -> str:
    return (
        "A GradScaler needs FP32 weights: it refuses to unscale gradients that are half. Keep the weights in "
        f"FP32, and run the model under torch.autocast.{_half_weights(crash)}"
    )


def _different_dtypes(crash: Crash) -> str:
    return (
        "Half weights met FP32 numbers outside of autocast. Keep the weights in FP32, and run the model "
        f"under torch.autocast; or cast the inputs.{_half_weights(crash)}"
    )


def _not_reached(crash: Crash) -> str:
    optimizer = describe_place(crash.made.optimizer)
    return (
        "No parameter of this optimizer has a gradient. It may hold other tensors than the model that was "
        "trained, which was copied, replaced or wrapped later (then make the optimizer last); or gradients "
        "were set to None before the step; or all of its parameters are frozen."
        + (f" It was made at {optimizer}." if optimizer else "")
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


def _constant(crash: Crash) -> str:
    return (
        "A constant does not fit half, whose smallest is -65504: write torch.finfo(torch.float16).min, or "
        f"compute the line in FP32.{_at(crash)}"
    )


def _at(crash: Crash) -> str:
    place = describe_place(crash.place)
    return f" The line is {place}." if place else ""


_FP16_GRADIENTS = "Attempting to unscale FP16 gradients"
_CONSTANT = "Half without overflow"
# Of Linear and of convolutions; with other dtypes half is not to blame.
_DTYPES = r"same dtype.*(Half|BFloat16)|type .*(Half|BFloat16).* should be the same"
_KNOWN: tuple[tuple[str, Callable[[Crash], str]], ...] = (
    (_FP16_GRADIENTS, _fp16_gradients),
    (_CONSTANT, _constant),
    ("No inf checks were recorded for this optimizer", _not_reached),
    ("No inf checks were recorded prior to update", _no_step),
    (r"unscale_\(\) has already been called", _unscaled_twice),
    (_DTYPES, _different_dtypes),
)
