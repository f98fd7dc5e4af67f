"""From trials to a cure: every change is a candidate, ordered by what a run would learn with it.

First come changes with which a run would learn: finite, with small errors of the gradients, at a usable loss
scale. Among them a local change goes before another precision for the whole step. Then the error counts, the
largest loss scale, and the cost for the user. Bad weights and data are repaired at their source before
anything else. Removing samples comes last, since similar ones will follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from halfguard.precision_names import Precision
from halfguard.records import Cause
from halfguard.records.autopsy import Culprit, Cure, CureKind, ReplayTrial
from halfguard.records.plan import AnyIsland, Island, LineIsland, PrecisionPlan
from halfguard.repairs.source_file import SourceFile
from halfguard.repairs.stable_composition import patch_line
from halfguard.repairs.stable_operation import make_patch
from halfguard.replaying.bench import replay_bench
from halfguard.replaying.composition_rewrite import CompositionRewrite, Found
from halfguard.replaying.fp32_lines import (
    StatementsInFP32,
    patch_statements,
    statements_at,
    statements_of_function,
)
from halfguard.replaying.function_modes import Place, name_lines
from halfguard.replaying.judgement import Judge, error_class
from halfguard.replaying.replayed_step import ReplayedStep, Variation
from halfguard.replaying.samples import batch_size, find_bad_samples
from halfguard.replaying.substitution import StableSubstitution
from halfguard.replaying.trials import Trials, has_own_line
from halfguard.trials.producer import Producer, short_change
from halfguard.trials.search import IslandSearch

_WHY_BF16 = "BF16 has the range of FP32, but only 8 significant bits instead of FP16's 11"
_HALVINGS = 24  # range of the search for a lower loss scale
_CHANGES = 4  # largest number of lines changed together
_ISLANDS = 8  # as many as the guard makes


class Reach(IntEnum):
    """How much of the training a change affects; a smaller reach is preferred."""

    SOURCE = 0  # bad weights or data, repaired where they come from
    LOCAL = 1  # a line, an operation, a module, the loss scale
    WHOLE = 2  # the precision of the whole step
    SAMPLES = 3  # training data that is left out


@dataclass(frozen=True)
class Candidate:
    """A change that was tried, and how to make it."""

    what: CureKind
    sentence: str
    trial: ReplayTrial
    reach: Reach = Reach.LOCAL
    cost: int = 0  # for the user, from a rewritten line to a whole run in FP32
    patch: str = ""

    def cure(self, judge: Judge) -> Cure:
        """Return the candidate as a recommendation."""
        scale = self.trial.largest_scale
        return Cure(
            what=self.what,
            sentence=self.sentence,
            trial=self.trial.name,
            patch=self.patch,
            scale=scale if scale and scale < judge.full_scale and self.what != "scale" else None,
        )


@dataclass(frozen=True)
class BadSamples:
    """The samples that cause the fault: their micro-batch, their rows, and the trial without them."""

    micro_batch: int
    samples: tuple[int, ...]
    without: ReplayTrial


def find_candidates(
    step: ReplayedStep, trials: Trials, culprit: Culprit | None
) -> tuple[list[Candidate], BadSamples | None]:
    """Run the trials; return the good candidates, best first, and the samples that cause the fault."""
    full = _precision(trials, Precision.FP32, "no smaller change fixed the step")
    bf16 = _precision(trials, Precision.BF16_MIXED, _WHY_BF16)
    bad = find_samples(trials)
    is_fine_in_fp32 = any(one.trial.good for one in full)
    candidates = [*_local(trials, culprit, is_fine_in_fp32=is_fine_in_fp32), *bf16, *full]
    candidates += _data(step, bad, culprit)
    good = [candidate for candidate in candidates if candidate.trial.good]
    return sorted(good, key=lambda one: _order(one, trials.judge)), bad


def _order(candidate: Candidate, judge: Judge) -> tuple[object, ...]:
    trial = candidate.trial
    if candidate.reach is Reach.SOURCE:
        return (False, candidate.reach)
    lacks_patch = candidate.what == "operation" and not candidate.patch
    return (
        not judge.is_sound(trial),
        candidate.reach,
        lacks_patch,
        error_class(trial),
        judge.scale_class(trial),
        candidate.cost,
    )


def _local(
    trials: Trials, culprit: Culprit | None, *, is_fine_in_fp32: bool
) -> Iterator[Candidate]:
    step = trials.step
    if culprit is not None and culprit.kind in ("parameter", "buffer"):
        yield _weights(trials, culprit)
    if culprit is not None and culprit.file:
        yield from rewritten(trials, culprit)
        yield from stable_operations(trials, culprit)
    if culprit is not None and is_fine_in_fp32:
        yield from _island(trials, culprit)
    if culprit is not None and has_own_line(step, culprit):
        for whole_function in (False, True):
            yield from statements(trials, culprit, whole_function=whole_function)
    if step.record.step.cause is Cause.GRADIENT_OVERFLOW and is_fine_in_fp32:
        yield from _scale(trials)


def _weights(trials: Trials, culprit: Culprit) -> Candidate:
    return Candidate(
        what="weights",
        sentence=(
            f"The {culprit.kind} {culprit.name} was not finite before the step began, so an earlier step is "
            "the cause. Return to an earlier snapshot. With its non-finite values set to 0, this step is "
            "finite."
        ),
        trial=trials.record_trial(
            f"{culprit.name} with its non-finite values set to 0", Variation(zeroed=(culprit.name,))
        ),
        reach=Reach.SOURCE,
        patch=f"with torch.no_grad():\n    model.state_dict()[{culprit.name!r}].nan_to_num_(0.0, 0.0, 0.0)",
    )


def _data(
    step: ReplayedStep, bad: BadSamples | None, culprit: Culprit | None
) -> Iterator[Candidate]:
    if bad is None:
        return
    came_in_bad = culprit is not None and culprit.kind == "input"
    came_in_bad |= step.record.step.cause is Cause.BAD_BATCH
    about = step.record.micro_batches[bad.micro_batch].about
    place = f" of micro-batch {bad.micro_batch}" if len(step.batches) > 1 else " of the batch"
    verb, it = ("causes", "it") if len(bad.samples) == 1 else ("cause", "them")
    yield Candidate(
        what="data",
        sentence=(
            f"{_describe(bad.samples).capitalize()}{place}{f' ({about})' if about else ''} {verb} the "
            f"fault. Without {it}, the step is finite. Repair or remove {it} in the data."
        ),
        trial=bad.without,
        reach=Reach.SOURCE if came_in_bad else Reach.SAMPLES,
    )


def find_samples(trials: Trials) -> BadSamples | None:
    """Find the samples without which the step is good; None if single samples are not the cause."""
    for index, batch in enumerate(trials.step.batches):
        size = batch_size(batch)
        alone = Variation(micro_batches=(index,))
        if size is None or size < 2 or trials.run("one micro-batch", alone).good:
            continue

        def is_good(samples: tuple[int, ...], alone: Variation = alone) -> bool:
            name = f"{len(samples)} samples"
            return bool(samples) and trials.run(name, replace(alone, samples=samples)).good

        samples = find_bad_samples(size, is_good)
        if not samples:
            return None
        rest = tuple(i for i in range(size) if i not in samples)
        name = f"the batch without {_describe(samples)}"
        return BadSamples(index, samples, trials.record_trial(name, replace(alone, samples=rest)))
    return None


def _describe(samples: tuple[int, ...]) -> str:
    """Return ``sample 3``, or ``samples 3 and 7``."""
    if len(samples) == 1:
        return f"sample {samples[0]}"
    return f"samples {', '.join(map(str, samples[:-1]))} and {samples[-1]}"


def rewritten(trials: Trials, culprit: Culprit) -> Iterator[Candidate]:
    """Try stable forms of the compositions in the culprit's function, if its line is in one."""
    here = (culprit.file, culprit.line)
    found = trials.compositions()
    if not any(here in one.lines for one in found):
        return
    places, patch = _patch_compositions(here, found)
    used = {one.place: one for one in found if one.place in places}.values()
    shown = ", ".join(f"{file}:{line}" for file, line in dict.fromkeys(one.place for one in used))
    texts = "; ".join(dict.fromkeys(one.composition.text for one in used))
    yield Candidate(
        what="operation",
        sentence=(
            f"At {shown} write {texts}. This form avoids the intermediate values. Changing a "
            "single operation does not restore the gradient."
        ),
        trial=trials.judged(
            texts, lambda: Variation(context=CompositionRewrite(places.__contains__))
        ),
        patch=patch,
    )


def _patch_compositions(here: Place, found: list[Found]) -> tuple[set[Place], str]:
    """Return the lines on which compositions of a function are rewritten, and the patch.

    Without a certain patch, all compositions that contain the culprit's line are rewritten.
    """
    involved = {one.place for one in found if here in one.lines}
    file = SourceFile.read(here[0])
    function = None if file is None else file.function_at(here[1])
    if file is None or function is None:
        return involved, ""
    lines = range(function.lineno, (function.end_lineno or 0) + 1)
    inside = {one.place for one in found if one.place[0] == here[0] and one.place[1] in lines}
    certain = {place for place in sorted(inside) if patch_line(file, place[1])}
    return (certain, file.patch()) if involved <= certain else (involved, "")


def stable_operations(trials: Trials, culprit: Culprit) -> Iterator[Candidate]:
    """Try stable forms on the culprit's line, then also on the line of the next bad number.

    There are none if the first line has no operation with a stable form.
    """
    culprits, best = [culprit], None
    while len(culprits) <= _CHANGES:
        places = [(c.file, c.line) for c in culprits]
        substitute = StableSubstitution(places)
        name = f"stable operations for {', '.join(c.op for c in culprits)}"
        trial = trials.run(name, Variation(context=substitute))
        if len(substitute.used) < len(set(places)):  # the last line has no stable form
            break
        best = trial, substitute.used
        following = trials.next_culprit(trial, Variation(context=StableSubstitution(places)))
        if following is None or (following.file, following.line) in places:
            break
        culprits.append(following)
    if best is None:
        return
    used = best[1]
    trial = trials.judged(best[0], lambda: Variation(context=StableSubstitution(used)))
    names = {place: {stable.name for stable in forms} for place, forms in used.items()}
    shown = "; ".join(
        f"{', '.join(f'halfguard.ops.{name}' for name in sorted(forms))} at {file}:{line}"
        for (file, line), forms in names.items()
    )
    is_exact = all(stable.exact for forms in used.values() for stable in forms)
    limit = "" if is_exact else " It returns a finite value instead of NaN or Inf."
    if not trial.grad_norm:
        limit += " All gradients of this step are then 0, so nothing is learned from it."
    yield Candidate(
        what="operation",
        sentence=f"Use {shown}.{limit}",
        trial=trial,
        cost=1 if is_exact else 6,
        patch=make_patch(names),
    )


def find_islands(trials: Trials, culprit: Culprit) -> tuple[AnyIsland, ...]:
    """Return the islands that the guard would make (``trials.search``)."""
    producer = Producer.of(culprit)
    bench = None if producer is None else replay_bench(trials.step)
    if producer is None or bench is None:
        return ()
    return tuple(island for island, _ in IslandSearch(bench).run(producer, _ISLANDS).islands)


def _island(trials: Trials, culprit: Culprit) -> Iterator[Candidate]:
    trials.watch("islands")
    islands = find_islands(trials, culprit)
    if not islands:
        return
    trial = trials.judged(
        " and ".join(map(short_change, islands)), lambda: Variation(islands=islands)
    )
    reason = f"{culprit.op} at {culprit.place} overflows {culprit.dtype or 'the 16-bit format'}"
    kept = [island.model_copy(update={"reason": reason}) for island in islands]
    plan = PrecisionPlan(
        precision=trials.step.record.precision,
        islands=tuple(island for island in kept if isinstance(island, Island)),
        lines=tuple(island for island in kept if isinstance(island, LineIsland)),
    )
    by = "by this plan" if plan.lines else "by halfguard.apply_plan with this plan"
    needs_guard = any(
        not line.within for line in plan.lines
    )  # a patch of the source works in any loop
    yield Candidate(
        what="island",
        sentence=f"Run {trial.name}, {by}.",
        trial=trial,
        cost=5 if needs_guard else 2,
        patch=plan.to_yaml().rstrip("\n"),
    )


def statements(trials: Trials, culprit: Culprit, *, whole_function: bool) -> Iterator[Candidate]:
    """Try the statement of the culprit, or those of its function, in FP32, with those that fail next."""
    places = [(culprit.file, culprit.line)]
    while len(places) <= _CHANGES:
        found = statements_at(places)
        if whole_function:
            found = [one for place in places for one in statements_of_function(place)]
        if not found:
            return
        mode = StatementsInFP32(found)
        trial = trials.run("", Variation(context=mode))
        following = trials.next_culprit(trial, Variation(context=StatementsInFP32(found)))
        place = ("", 0) if following is None else (following.file, following.line)
        if following is None or place in places or not has_own_line(trials.step, following):
            break
        places.append(place)
    patch = patch_statements(mode, found)
    if not any(mode.half.values()) and not mode.needs_block:
        return
    lines = name_lines(places)
    name = f"the function of {lines} in FP32" if whole_function else f"{lines} in FP32"
    # A function outside the model is a loss: other lines of it fail in other batches. A module is larger.
    is_loss = culprit.module is None
    part = "the function around" if whole_function else "the line"
    yield Candidate(
        what="operation",
        sentence=f"Compute {part} {culprit.place} in float32: call .float() on its 16-bit inputs.",
        trial=trials.judged(name, lambda: Variation(context=StatementsInFP32(found))),
        cost=3 if whole_function is is_loss else 4,
        patch=patch,
    )


def _scale(trials: Trials) -> Iterator[Candidate]:
    """Find the largest lower loss scale at which the step is good."""
    own = trials.step.scale

    def at(halvings: int) -> ReplayTrial:
        scale = own / 2.0**halvings
        return trials.run(f"loss scale {scale:g}", Variation(scale=scale))

    failed, lowest = 0, _HALVINGS  # too few, and enough
    if not at(lowest).good:
        return
    while lowest - failed > 1:
        middle = (lowest + failed) // 2
        failed, lowest = (failed, middle) if at(middle).good else (middle, lowest)
    scale = own / 2.0**lowest
    yield Candidate(
        what="scale",
        sentence=(
            f"The gradients overflow at a loss scale of {own:g}, but not at {scale:g}. Allow the scale to "
            "decrease to that value."
        ),
        trial=trials.judged(at(lowest), Variation),
        cost=7,
        patch=f"scale:\n  floor: {scale!r}\n  init: {scale!r}",
    )


def _precision(trials: Trials, precision: Precision, why: str) -> list[Candidate]:
    """Try the whole step in another precision, unless it is the step's own."""
    if precision is trials.step.precision:
        return []
    return [
        Candidate(
            what="precision",
            sentence=f"Train in {precision}: {why}.",
            trial=trials.judged(
                f"the whole step in {precision}", lambda: Variation(precision=precision)
            ),
            reach=Reach.WHOLE,
            cost=9 if precision is Precision.FP32 else 8,
            patch=f"precision: {precision}",
        )
    ]
