"""Trials of possible cures: each change is made alone, and the step is run with it.

This also finds the operation that returned the first NaN or Inf of a step, unchanged or varied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

from torch import Tensor

from halfguard.records.autopsy import Culprit, ReplayTrial
from halfguard.replaying.composition_rewrite import CompositionRewrite, Found
from halfguard.replaying.judgement import Change, Judge
from halfguard.replaying.replayed_step import UNCHANGED, ReplayedStep, Variation, scale_loss
from halfguard.tracing.first_nonfinite import find_first_nonfinite


class Trials:
    """Runs variations of a step and records the results."""

    def __init__(self, step: ReplayedStep, watch: Callable[[str], None] = lambda _: None) -> None:
        self.step = step
        self.done: list[ReplayTrial] = []
        self.judge = Judge(step)
        self.watch = watch

    def record_trial(self, name: str, variation: Variation) -> ReplayTrial:
        """Run one variation and record the result."""
        trial = self.run(name, variation)
        self.done.append(trial)
        return trial

    def run(self, name: str, variation: Variation) -> ReplayTrial:
        """Run one variation; an exception makes it a bad trial with the message as note."""
        trial = self._run(name, variation)
        floor = self.step.scale_floor
        if trial.good or not isfinite(trial.loss) or variation.scale or floor >= self.step.scale:
            return trial
        # The loss is finite and the gradients are not: a dynamic loss scale would fall by itself.
        lower = replace(variation, scale=floor)
        again = self._run(
            name, lower, f"at loss scale {floor:g}, which a dynamic scale would reach"
        )
        return again if again.good else trial

    def _run(self, name: str, variation: Variation, note: str = "") -> ReplayTrial:
        self.watch(name)
        try:
            result = self.step.run(variation)
        except Exception as error:  # noqa: BLE001 - the user's code, under changed conditions
            message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return ReplayTrial(name=name, good=False, note=message)
        if result.grad_norm == 0 and not note:
            note = "all gradients are 0, so nothing is learned"
        return ReplayTrial(
            name=name,
            good=result.is_good(self.step.limits),
            loss=result.loss.item(),
            grad_norm=result.grad_norm,
            note=note,
        )

    def judged(self, trial: str | ReplayTrial, change: Change) -> ReplayTrial:
        """Judge a change and record the result; one that was not run yet is given by its name."""
        ran = self.run(trial, change()) if isinstance(trial, str) else trial
        self.done.append(self.judge.judge(ran, change))
        return self.done[-1]

    def compositions(self) -> list[Found]:
        """Return the compositions of operations in the step."""
        seen = CompositionRewrite(lambda _: True)
        self.watch("compositions")
        try:
            self.step.run(Variation(context=seen))
        except Exception:  # noqa: BLE001 - the user's code, under changed conditions
            return []
        return seen.found

    def next_culprit(self, trial: ReplayTrial, variation: Variation) -> Culprit | None:
        """Find the culprit that is left after a change, at the loss scale that a dynamic one would reach."""
        lower = replace(variation, scale=self.step.scale_floor)
        try:
            found = None if trial.good else find_first_bad_number(self.step, lower)
        except Exception:  # noqa: BLE001 - the user's code, under changed conditions
            return None
        return found if found is not None and found.file else None


def has_own_line(step: ReplayedStep, culprit: Culprit) -> bool:
    """Return whether a culprit is on a line of the user's, not in a layer of torch that the line calls."""
    if not culprit.file or culprit.module is None:
        return bool(culprit.file)
    module = step.model.get_submodule(culprit.module)
    return not type(module).__module__.startswith("torch.")


def find_first_bad_number(step: ReplayedStep, variation: Variation = UNCHANGED) -> Culprit | None:
    """Find the operation that made it, one micro-batch after the other; None if all are finite."""
    with variation.active():
        for index in range(len(step.batches)):
            found = _in_micro_batch(step, index, variation)
            if found is not None:
                return found
    return None


def _in_micro_batch(step: ReplayedStep, index: int, variation: Variation) -> Culprit | None:
    # Copy model and batch before watching: a copy of a bad number is not its origin.
    model, batch = step.copy(variation), step.batch(index, variation)
    scale = step.scale if variation.scale is None else variation.scale

    def loss() -> Tensor:
        return scale_loss(step.part(model, index, batch, variation), scale)

    return find_first_nonfinite(loss, model)
