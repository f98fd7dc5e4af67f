"""Trials of possible cures: each change is made alone, and the step is run with it.

This also finds the operation that returned the first NaN or Inf of a step, unchanged or varied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from torch import Tensor

from halfguard.precision_names import Precision
from halfguard.records.autopsy import Culprit, ReplayTrial
from halfguard.records.plan import AnyIsland
from halfguard.repairs.source_file import SourceFile
from halfguard.repairs.stable_composition import patch_line
from halfguard.replaying.bench import replay_bench
from halfguard.replaying.composition_rewrite import CompositionRewrite, Found
from halfguard.replaying.fp32_lines import (
    StatementsInFP32,
    patch_statements,
    statements_at,
    statements_of_function,
)
from halfguard.replaying.function_modes import Place
from halfguard.replaying.judgement import Change, Judge
from halfguard.replaying.replayed_step import UNCHANGED, ReplayedStep, Variation, scale_loss
from halfguard.replaying.samples import batch_size, find_bad_samples
from halfguard.replaying.substitution import StableForm, StableSubstitution
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.trials.producer import Producer, short_change
from halfguard.trials.search import IslandSearch

_DOUBLINGS = 24  # range of the search for a lower loss scale
_CHANGES = 4  # largest number of lines changed together
_ISLANDS = 8  # as many as the guard makes


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
        self.judge = Judge(step)
        self._watch = watch

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
        self._watch(name)
        try:
            result = self.step.run(variation)
        except Exception as error:  # noqa: BLE001 - the user's code, under changed conditions
            message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return ReplayTrial(name=name, good=False, note=message)
        if result.grad_norm == 0 and not note:
            note = "all gradients are 0: finite, but nothing is learned"
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

        trial = self.judge.judge(best[0], lambda: Variation(context=StableSubstitution(used)))
        self.done.append(trial)
        return trial, used

    def compositions(self, culprit: Culprit) -> tuple[ReplayTrial, list[Found], str] | None:
        """Try stable forms of the compositions in the culprit's function; None if its line is in none."""
        here = (culprit.file, culprit.line)
        seen = CompositionRewrite(lambda _: True)
        self._watch("compositions")
        try:
            self.step.run(Variation(context=seen))
        except Exception:  # noqa: BLE001 - the user's code, under changed conditions
            return None
        if not any(here in found.lines for found in seen.found):
            return None
        places, patch = _patch_compositions(here, seen.found)

        def change() -> Variation:
            return Variation(context=CompositionRewrite(places.__contains__))

        used = {found.place: found for found in seen.found if found.place in places}
        texts = dict.fromkeys(found.composition.text for found in used.values())
        trial = self.judged(f"{'; '.join(texts)}", change)
        return trial, list(used.values()), patch

    def statements(
        self, culprit: Culprit, *, whole_function: bool
    ) -> tuple[ReplayTrial, str] | None:
        """Try the statement of the culprit, or those of its function, in FP32, with those that fail next."""
        places = [(culprit.file, culprit.line)]
        while len(places) <= _CHANGES:
            statements = statements_at(places)
            if whole_function:
                statements = [s for place in places for s in statements_of_function(place)]
            if not statements:
                return None
            mode = StatementsInFP32(statements)
            trial = self.run("", Variation(context=mode))
            following = (
                None if trial.good else self._next(Variation(context=StatementsInFP32(statements)))
            )
            place = None if following is None else (following.file, following.line)
            if (
                following is None
                or place is None
                or place in places
                or not has_own_line(self.step, following)
            ):
                break
            places.append(place)
        patch = patch_statements(mode, statements)
        if not any(mode.half.values()) and not mode.needs_block:
            return None

        def change() -> Variation:
            return Variation(context=StatementsInFP32(statements))

        lines = " and ".join(f"{Path(file).name}:{line}" for file, line in places)
        name = f"the function of {lines} in FP32" if whole_function else f"{lines} in FP32"
        return self.judged(name, change), patch

    def judged(self, name: str, change: Change) -> ReplayTrial:
        """Run a change, judge it, and record the result."""
        trial = self.judge.judge(self.run(name, change()), change)
        self.done.append(trial)
        return trial

    def islands(self, culprit: Culprit) -> tuple[ReplayTrial, tuple[AnyIsland, ...]] | None:
        """Try the islands that the guard would make (``trials.search``)."""
        producer = Producer.of(culprit)
        if producer is None:
            return None
        self._watch("islands")
        bench = replay_bench(self.step)
        if bench is None:
            return None
        found = IslandSearch(bench).run(producer, _ISLANDS)
        islands = tuple(island for island, _ in found.islands)
        if not islands:
            return None
        name = " and ".join(map(short_change, islands))
        return self.judged(name, lambda: Variation(islands=islands)), islands

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
        scale = self.step.scale / 2.0**lowest
        trial = self.judge.judge(self._at(lowest), Variation)
        self.done.append(trial)
        return trial, scale

    def _at(self, doublings: int) -> ReplayTrial:
        scale = self.step.scale / 2.0**doublings
        return self.run(f"loss scale {scale:g}", Variation(scale=scale))

    def precision(self, precision: Precision) -> ReplayTrial | None:
        """Try the whole step in another precision; None if it is the step's own."""
        if precision is self.step.precision:
            return None
        return self.judged(f"the whole step in {precision}", lambda: Variation(precision=precision))

    def zeroed(self, name: str) -> ReplayTrial:
        """Try the step with the non-finite numbers of one parameter or buffer set to 0."""
        return self.record_trial(
            f"{name} with its non-finite values set to 0", Variation(zeroed=(name,))
        )

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


def _patch_compositions(here: Place, found: list[Found]) -> tuple[set[Place], str]:
    """Return the lines on which compositions of a function are rewritten, and the patch.

    Without a certain patch, all compositions that contain the culprit's line are rewritten.
    """
    involved = {one.place for one in found if here in one.lines}
    file = SourceFile.read(here[0])
    function = None if file is None else file.function_at(here[1])
    if file is None or function is None:
        return involved, ""
    inside = {
        one.place
        for one in found
        if one.place[0] == here[0] and function.lineno <= one.place[1] <= (function.end_lineno or 0)
    }
    certain = {place for place in sorted(inside) if patch_line(file, place[1])}
    return (certain, file.patch()) if involved <= certain else (involved, "")


def has_own_line(step: ReplayedStep, culprit: Culprit) -> bool:
    """Return whether a culprit is on a line of the user's, not in a layer of torch that the line calls."""
    if not culprit.file or culprit.module is None:
        return bool(culprit.file)
    module = step.model.get_submodule(culprit.module)
    return not type(module).__module__.startswith("torch.")


def describe_samples(samples: tuple[int, ...]) -> str:
    """Return ``sample 3``, or ``samples 3 and 7``."""
    if len(samples) == 1:
        return f"sample {samples[0]}"
    return f"samples {', '.join(map(str, samples[:-1]))} and {samples[-1]}"


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
