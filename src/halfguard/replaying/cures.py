"""From trials to a cure: every change is a candidate, ordered by what a run would learn with it.

First come changes with which a run would learn: finite, with small errors of the gradients, at a usable loss
scale. Among them a local change goes before another precision for the whole step. Then the error counts, the
largest loss scale, and the cost for the user. Bad weights and data are repaired at their source before
anything else. Removing samples comes last, since similar ones will follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from halfguard.precision_names import Precision
from halfguard.records import Cause
from halfguard.records.autopsy import Culprit, Cure, CureKind, ReplayTrial
from halfguard.records.plan import Island, LineIsland, PrecisionPlan
from halfguard.repairs.stable_operation import make_patch
from halfguard.replaying.function_modes import Place
from halfguard.replaying.judgement import Judge, error_class
from halfguard.replaying.replayed_step import ReplayedStep
from halfguard.replaying.substitution import StableForm
from halfguard.replaying.trials import BadSamples, Trials, describe_samples, has_own_line

_WHY_BF16 = "BF16 has the range of FP32, but 8 significant bits where FP16 has 11"


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


def find_candidates(
    step: ReplayedStep, trials: Trials, culprit: Culprit | None
) -> tuple[list[Candidate], BadSamples | None]:
    """Run the trials; return the good candidates, best first, and the samples that cause the fault."""
    full = trials.precision(Precision.FP32)
    bf16 = trials.precision(Precision.BF16_MIXED)
    bad = trials.bad_samples()
    candidates = [
        *_local(step, trials, culprit, full),
        *_precision(bf16, Precision.BF16_MIXED, _WHY_BF16),
        *_precision(full, Precision.FP32, "nothing smaller helped"),
        *_data(step, bad, culprit),
    ]  # fmt: skip
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
    step: ReplayedStep, trials: Trials, culprit: Culprit | None, full: ReplayTrial | None
) -> Iterator[Candidate]:
    if culprit is not None and culprit.kind in ("parameter", "buffer"):
        yield _weights(trials, culprit)
    if culprit is not None and culprit.file:
        yield from _rewritten(trials, culprit)
        yield from _operation(trials, culprit)
    if culprit is not None and full is not None and full.good:
        yield from _island(step, trials, culprit)
    if culprit is not None and has_own_line(step, culprit):
        yield from _statements(trials, culprit)
    if step.record.step.cause is Cause.GRADIENT_OVERFLOW and full is not None and full.good:
        yield from _scale(step, trials)


def _weights(trials: Trials, culprit: Culprit) -> Candidate:
    return Candidate(
        what="weights",
        sentence=f"The {culprit.kind} {culprit.name} was not finite before the step began: an earlier step "
        "caused it. Return to an earlier snapshot. With its non-finite values set to 0 this step is finite.",
        trial=trials.zeroed(culprit.name),
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
        sentence=f"{describe_samples(bad.samples).capitalize()}{place}{f' ({about})' if about else ''} "
        f"{verb} the fault; without {it} the step is good. Repair or remove {it} in the data.",
        trial=bad.without,
        reach=Reach.SOURCE if came_in_bad else Reach.SAMPLES,
    )


def _rewritten(trials: Trials, culprit: Culprit) -> Iterator[Candidate]:
    found = trials.compositions(culprit)
    if found is None:
        return
    trial, used, patch = found
    places = ", ".join(f"{file}:{line}" for file, line in dict.fromkeys(one.place for one in used))
    texts = "; ".join(dict.fromkeys(one.composition.text for one in used))
    yield Candidate(
        what="operation",
        sentence=f"At {places} write {texts}. It computes the result without intermediate values; no change "
        "of a single operation brings its gradient back.",
        trial=trial,
        patch=patch,
    )


def _operation(trials: Trials, culprit: Culprit) -> Iterator[Candidate]:
    found = trials.stable_operations(culprit)
    if found is None:
        return
    trial, used = found
    names = {place: {stable.name for stable in forms} for place, forms in used.items()}
    shown = "; ".join(
        f"{', '.join(f'halfguard.ops.{name}' for name in sorted(forms))} at {file}:{line}"
        for (file, line), forms in names.items()
    )
    limit = "" if _exact(used) else " It limits its result to the range of the dtype."
    if not trial.grad_norm:
        limit += " All gradients of this step are then 0: finite, but nothing is learned from it."
    yield Candidate(
        what="operation",
        sentence=f"Use {shown}.{limit}",
        trial=trial,
        cost=1 if _exact(used) else 6,
        patch=make_patch(names),
    )


def _exact(used: Mapping[Place, set[StableForm]]) -> bool:
    return all(stable.exact for forms in used.values() for stable in forms)


def _island(step: ReplayedStep, trials: Trials, culprit: Culprit) -> Iterator[Candidate]:
    found = trials.islands(culprit)
    if found is None:
        return
    trial, islands = found
    reason = f"{culprit.op} at {culprit.place} leaves the range of {culprit.dtype or 'half'}"
    kept = [island.model_copy(update={"reason": reason}) for island in islands]
    plan = PrecisionPlan(
        precision=step.record.precision,
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


def _statements(trials: Trials, culprit: Culprit) -> Iterator[Candidate]:
    # A function outside the model is a loss: other lines of it fail in other batches. A module is larger.
    is_loss = culprit.module is None
    for cost, whole_function in ((4 if is_loss else 3, False), (3 if is_loss else 4, True)):
        found = trials.statements(culprit, whole_function=whole_function)
        if found is not None:
            trial, patch = found
            part = "the function around" if whole_function else "the line"
            yield Candidate(
                what="operation",
                sentence=f"Compute {part} {culprit.place} in float32: cast its half inputs by .float().",
                trial=trial,
                cost=cost,
                patch=patch,
            )


def _scale(step: ReplayedStep, trials: Trials) -> Iterator[Candidate]:
    found = trials.lower_scale()
    if found is None:
        return
    trial, scale = found
    yield Candidate(
        what="scale",
        sentence=f"The gradients fit at a loss scale of {scale:g}, not at {step.record.scale:g}: allow "
        "the scale to decrease to that value.",
        trial=trial,
        cost=7,
        patch=f"scale:\n  floor: {scale!r}\n  init: {scale!r}",
    )


def _precision(trial: ReplayTrial | None, precision: Precision, why: str) -> Iterator[Candidate]:
    if trial is None:
        return
    yield Candidate(
        what="precision",
        sentence=f"Train in {precision}: {why}.",
        trial=trial,
        reach=Reach.WHOLE,
        cost=9 if precision is Precision.FP32 else 8,
        patch=f"precision: {precision}",
    )
