"""Judge a change by what the run would learn with it, not by whether one step is finite.

Two references: FP32 as written, and float64 of what is meant (the registry of compositions). They differ
where the code as written loses the gradient in FP32 too; then the second one counts. A change is compared
with both by the relative error of all gradients together, at the largest loss scale at which its step is
finite. That scale counts as well: a change that needs a scale of 8 makes this step finite, and the next ones
fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from math import ceil, floor, inf, isfinite, log, log2

import torch

from halfguard.formats import FP16
from halfguard.guard.stepping.scaler import CEILING
from halfguard.precision.modes import autocast_dtype
from halfguard.precision_names import Precision
from halfguard.records.autopsy import ReplayTrial
from halfguard.replaying.composition_rewrite import CompositionRewrite
from halfguard.replaying.function_modes import InFloat64
from halfguard.replaying.replayed_step import ReplayedStep, Result, Variation, relative_error
from halfguard.trials.proof import MARGIN, TOLERANCE

Change = Callable[[], Variation]  # a new variation for each run: contexts are used once

_ROUNDING = 0.02  # errors up to this are rounding, and equal
_HEALTHY_SCALE = 256.0  # below it, a run in FP16 loses small gradients
_SCALE_STEP = (
    16.0  # loss scales within it are equal: a dynamic scale finds the difference in four steps
)


class Judge:
    """Holds the references of a step, and compares changes with them."""

    def __init__(self, step: ReplayedStep) -> None:
        self.step = step

    @property
    def full_scale(self) -> float:
        """The loss scale that a healthy run would have: the initial one, or the step's own if larger."""
        scale = self.step.record.config.get("scale")
        init = scale.get("init") if isinstance(scale, dict) else None
        # No larger than a guard's own: an incident may come from a stranger.
        is_scale = isinstance(init, int | float) and 0 < init <= CEILING
        own = min(self.step.scale, CEILING)
        return max(own, float(init)) if is_scale and init is not None else own

    @cached_property
    def as_written(self) -> Result | None:
        """The step in FP32, or None if it is not finite."""
        return self._finite(Variation(precision=Precision.FP32, scale=1.0))

    @cached_property
    def as_meant(self) -> Result | None:
        """The step in float64 with its compositions as they are meant; None if it has none."""
        rewrite = CompositionRewrite(lambda _: True, meaning=True)
        context = _nested(rewrite)
        result = self._finite(Variation(precision=Precision.FP32, scale=1.0, context=context))
        return result if rewrite.replaced else None

    @cached_property
    def sensitivity(self) -> float:
        """How far FP32's gradients move if the weights are rounded to half; no change can do better."""
        half = autocast_dtype(self.step.precision) or torch.float16
        rounded = self._finite(Variation(precision=Precision.FP32, scale=1.0, rounded=half))
        if self.as_written is None or rounded is None:
            return 0.0
        return relative_error(rounded, self.as_written)

    @cached_property
    def expected_scale(self) -> float:
        """The loss scale that a cured run could have: the full one, if the gradients of the reference fit."""
        reference = self.as_meant or self.as_written
        grads = () if reference is None else reference.grads.values()
        largest = max((grad.abs().max().item() for grad in grads if grad.numel()), default=0.0)
        fits = 2.0 ** floor(log2(FP16.largest / largest)) if largest else inf
        return max(1.0, min(self.full_scale, fits))

    @property
    def saturation(self) -> float | None:
        """The relative difference of the two references; None if there are not two."""
        if self.as_written is None or self.as_meant is None:
            return None
        return relative_error(self.as_written, self.as_meant)

    def judge(self, trial: ReplayTrial, change: Change) -> ReplayTrial:
        """Return a trial with its errors, and the largest loss scale at which its step is finite."""
        if not isfinite(trial.loss):
            return trial
        precision = change().precision or self.step.precision
        scale, result = self._largest_scale(change, needs_scale=precision.needs_loss_scale)
        if result is None:
            return trial.model_copy(update={"largest_scale": 0.0})
        errors = {
            name: None if reference is None else relative_error(result, reference)
            for name, reference in (
                ("error_as_written", self.as_written),
                ("error_as_meant", self.as_meant),
            )
        }
        return trial.model_copy(update={"largest_scale": scale, **errors})

    def _largest_scale(
        self, change: Change, *, needs_scale: bool
    ) -> tuple[float | None, Result | None]:
        """Find the largest power of two, up to the full scale, at which the step is finite."""
        full = self.full_scale if needs_scale else 1.0
        result = self._finite(replace(change(), scale=full))
        if result is not None or not needs_scale:
            return (full if needs_scale else None), result
        best, lowest = None, 0
        highest = ceil(log2(max(full, 2.0)))  # exponents: finite at the first, not at the second
        while highest > lowest:
            middle = (lowest + highest) // 2
            tried = self._finite(replace(change(), scale=2.0**middle))
            if tried is None:
                highest = middle
            else:
                best, lowest = tried, middle + 1
        return 2.0 ** (lowest - 1), best

    def _finite(self, variation: Variation) -> Result | None:
        try:
            result = self.step.run(variation)
        except Exception:  # noqa: BLE001 - the user's code, under changed conditions
            return None
        return result if result.finite else None

    def is_sound(self, trial: ReplayTrial) -> bool:
        """Return whether a run would learn with a change: small errors at a usable loss scale."""
        usable = min(self.expected_scale / _SCALE_STEP, _HEALTHY_SCALE)
        fits = trial.largest_scale is None or trial.largest_scale >= usable
        return trial.good and fits and self._is_small(trial)

    def _is_small(self, trial: ReplayTrial) -> bool:
        """Return whether the error is small, by the rule of ``trials.proof``."""
        error, is_meant = _error_of(trial), trial.error_as_meant is not None
        if error is None or error <= TOLERANCE:
            return error is not None
        return not is_meant and error <= MARGIN * self.sensitivity

    def scale_class(self, trial: ReplayTrial) -> int:
        """Return how far the largest loss scale is below the expected one, in steps of 16."""
        if trial.largest_scale is None:
            return 0
        ratio = self.expected_scale / max(trial.largest_scale, 0.5)
        return max(0, int(log(ratio, _SCALE_STEP)))


def _error_of(trial: ReplayTrial) -> float | None:
    return trial.error_as_written if trial.error_as_meant is None else trial.error_as_meant


def error_class(trial: ReplayTrial) -> int:
    """Return 0 for an error that is rounding, and one more for each doubling; 2 if it is unknown."""
    error = _error_of(trial)
    if error is None:
        return 2
    return 0 if error <= _ROUNDING else min(20, ceil(log2(error / _ROUNDING)))


@contextmanager
def _nested(rewrite: CompositionRewrite) -> Iterator[None]:
    with InFloat64(), rewrite:
        yield
