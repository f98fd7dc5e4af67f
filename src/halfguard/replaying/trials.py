"""Trials of possible cures: each change is made alone, and the step is run with it.

This also finds the operation that made the first bad number of a step, unchanged or varied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from torch import Tensor

from halfguard.precision_names import Precision
from halfguard.records.autopsy import ReplayTrial
from halfguard.records.culprit import Culprit
from halfguard.replaying.compositions import LogOfProbability, Probability
from halfguard.replaying.replayed_step import (
    UNCHANGED,
    ReplayedStep,
    Result,
    Variation,
    relative_error,
    scale_loss,
)
from halfguard.replaying.samples import batch_size, find_bad_samples
from halfguard.replaying.substitution import Place, StableForm, StableSubstitution
from halfguard.tracing.first_nonfinite import find_first_nonfinite

_DOUBLINGS = 24  # range of the search for a lower loss scale
Change = Callable[[], AbstractContextManager[Any]]
_CHANGES = 4  # largest number of lines or modules changed together


@dataclass(frozen=True)
class BadSamples:
    """The samples that cause the fault: their micro-batch, their rows, and the trial without them."""

    micro_batch: int
    samples: tuple[int, ...]
    without: ReplayTrial


class Trials:
    """Runs variations of a step and records the results."""

    def __init__(self, step: ReplayedStep, watch: Callable[[str], None] = lambda _: None) -> None:
        self.step = step
        self.done: list[ReplayTrial] = []
        self._watch = watch
        self._meaning: Change | None = None  # the culprit's line as it is meant, if that is known

    def record_trial(self, name: str, variation: Variation, note: str = "") -> ReplayTrial:
        """Run one variation and record the result."""
        trial = self.run(name, variation, note)
        self.done.append(trial)
        return trial

    def run(self, name: str, variation: Variation, note: str = "") -> ReplayTrial:
        """Run one variation; an exception makes it a bad trial with the message as note."""
        trial = self._run(name, variation, note)
        floor = self.step.scale_floor
        if trial.good or not isfinite(trial.loss) or variation.scale or floor >= self.step.scale:
            return trial
        # The loss is finite and the gradients are not: a dynamic loss scale would fall by itself.
        lower = replace(variation, scale=floor)
        again = self._run(
            name, lower, f"at loss scale {floor:g}, which a dynamic scale would reach"
        )
        return again if again.good else trial

    def _run(self, name: str, variation: Variation, note: str) -> ReplayTrial:
        self._watch(name)
        try:
            result = self.step.run(variation)
        except Exception as error:  # noqa: BLE001 - the user's code, under changed conditions
            message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return ReplayTrial(name=name, good=False, note=message)
        if result.grad_norm == 0 and not note:
            note = "all gradients are 0: finite, but nothing is learnt"
        return ReplayTrial(
            name=name,
            good=result.is_good(self.step.limits),
            loss=result.loss.item(),
            grad_norm=result.grad_norm,
            note=note,
        )

    # -- one trial per kind of cure

    def stable_operations(
        self, culprit: Culprit
    ) -> tuple[ReplayTrial, dict[Place, set[StableForm]]] | None:
        """Try stable forms on the culprit's line, then also on the line of the next bad number.

        Return None if the first line has no operation with a stable form.
        """
        culprits, best = [culprit], None
        while len(culprits) <= _CHANGES:
            places = [(c.file, c.line) for c in culprits]
            substitute = StableSubstitution(places)
            name = f"stable operations for {', '.join(c.op for c in culprits)}"
            trial = self.run(name, Variation(context=substitute))
            if len(substitute.used) < len(set(places)):  # the last line has no stable form
                break
            best = trial, substitute.used
            found = (
                None if trial.good else self._next(Variation(context=StableSubstitution(places)))
            )
            if found is None or not found.file or (found.file, found.line) in places:
                break
            culprits.append(found)
        if best is None:
            return None
        used = best[1]
        best = self._with_judgement(best[0], lambda: StableSubstitution(used)), used
        self.done.append(best[0])
        return best

    def log_of_probability(self, culprit: Culprit) -> tuple[ReplayTrial, Probability] | None:
        """Try to compute a logarithm of probabilities, on the culprit's line, from their logits."""
        rewrite = LogOfProbability((culprit.file, culprit.line))
        trial = self.run("the logarithm computed from the logits", Variation(context=rewrite))
        if rewrite.used is None:
            return None
        self._meaning = lambda: LogOfProbability((culprit.file, culprit.line))
        trial = self._with_judgement(trial, self._meaning)
        self.done.append(trial)
        return trial, rewrite.used

    def _with_judgement(self, trial: ReplayTrial, change: Change) -> ReplayTrial:
        """Note the largest loss scale at which the step is finite, and the error of its gradients."""
        if not isfinite(trial.loss):
            return trial
        notes = [trial.note] if trial.note else []
        result = self._result(Variation(context=change(), scale=1.0))
        if result is None or not result.finite:
            return trial.model_copy(
                update={"note": "; ".join([*notes, "not finite at any loss scale"])}
            )
        notes.append(f"finite up to loss scale {self._largest_scale(change):g}")
        references: dict[str, Change] = {"FP32 as written": nullcontext}
        if self._meaning is not None:
            references["FP32 of what is meant"] = self._meaning
        for name, reference in references.items():
            right = self._result(
                Variation(precision=Precision.FP32, context=reference(), scale=1.0)
            )
            if right is not None and right.finite:
                notes.append(f"gradients {relative_error(result, right):.1%} from {name}")
        return trial.model_copy(update={"note": "; ".join(notes)})

    def _result(self, variation: Variation) -> Result | None:
        try:
            return self.step.run(variation)
        except Exception:  # noqa: BLE001 - the user's code, under changed conditions
            return None

    def _largest_scale(self, change: Change) -> float:
        """Find the largest power of two, up to 2**24, at which the step is finite with a change."""
        low, high = 0, _DOUBLINGS + 1  # exponents: finite at the first, not at the second
        while high - low > 1:
            middle = (low + high) // 2
            result = self._result(Variation(context=change(), scale=2.0**middle))
            finite = result is not None and result.finite
            low, high = (middle, high) if finite else (low, middle)
        return 2.0**low

    def islands(self, culprit: Culprit) -> tuple[ReplayTrial, tuple[str, ...]] | None:
        """Try the culprit's module in FP32, with those that fail next; else the modules around it."""
        paths: tuple[str, ...] = ()
        following: Culprit | None = culprit
        while following is not None and following.module and len(paths) < _CHANGES:
            if following.module in paths:
                break
            paths = (*paths, following.module)
            trial = self._in_fp32(paths)
            if trial.good:
                return trial, paths
            following = self._next(Variation(islands=paths))
        for path in _enclosing_modules(culprit.module or ""):
            trial = self._in_fp32((path,))
            if trial.good:
                return trial, (path,)
        return None

    def _in_fp32(self, paths: tuple[str, ...]) -> ReplayTrial:
        return self.record_trial(
            f"{' and '.join(map(repr, paths))} in FP32", Variation(islands=paths)
        )

    def _next(self, variation: Variation) -> Culprit | None:
        """Find the next culprit after a change, at the loss scale that a dynamic one would reach."""
        try:
            return find_first_bad_number(self.step, replace(variation, scale=self.step.scale_floor))
        except Exception:  # noqa: BLE001 - the user's code, under changed conditions
            return None

    def lower_scale(self) -> tuple[ReplayTrial, float] | None:
        """Find the largest lower loss scale at which the step is good."""
        lowest = _DOUBLINGS
        if not self._at(lowest).good:
            return None
        failed = 0  # halvings of the step's scale: too few, and enough
        while lowest - failed > 1:
            middle = (lowest + failed) // 2
            failed, lowest = (failed, middle) if self._at(middle).good else (middle, lowest)
        trial = self._at(lowest)
        self.done.append(trial)
        return trial, self.step.scale / 2.0**lowest

    def _at(self, doublings: int) -> ReplayTrial:
        scale = self.step.scale / 2.0**doublings
        return self.run(f"loss scale {scale:g}", Variation(scale=scale))

    def precision(self, precision: Precision) -> ReplayTrial | None:
        """Try the whole step in another precision; None if it is the step's own."""
        if precision is self.step.precision:
            return None
        return self.record_trial(f"the whole step in {precision}", Variation(precision=precision))

    def zeroed(self, name: str) -> ReplayTrial:
        """Try the step with the non-finite numbers of one parameter or buffer set to 0."""
        return self.record_trial(f"{name} with its bad numbers set to 0", Variation(zeroed=(name,)))

    def bad_samples(self) -> BadSamples | None:
        """Find the samples without which the step is good; None if single samples are not the cause."""
        for index, batch in enumerate(self.step.batches):
            size = batch_size(batch)
            alone = Variation(micro_batches=(index,))
            if size is None or size < 2 or self.run("one micro-batch", alone).good:
                continue

            def is_good(samples: tuple[int, ...], alone: Variation = alone) -> bool:
                name = f"{len(samples)} samples"
                return bool(samples) and self.run(name, replace(alone, samples=samples)).good

            samples = find_bad_samples(size, is_good)
            if not samples:
                return None
            rest = tuple(i for i in range(size) if i not in samples)
            without = self.record_trial(
                f"the batch without {describe_samples(samples)}", replace(alone, samples=rest)
            )
            return BadSamples(index, samples, without)
        return None


def _enclosing_modules(path: str) -> Iterator[str]:
    """Yield the modules around a module, innermost first, without the whole model."""
    while path := path.rpartition(".")[0]:
        yield path


def describe_samples(samples: tuple[int, ...]) -> str:
    """Return ``sample 3``, or ``samples 3 and 7``."""
    if len(samples) == 1:
        return f"sample {samples[0]}"
    return f"samples {', '.join(map(str, samples[:-1]))} and {samples[-1]}"


def find_first_bad_number(step: ReplayedStep, variation: Variation = UNCHANGED) -> Culprit | None:
    """Find the operation that made it, one micro-batch after the other; None if all are finite."""
    with variation.context:
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
