"""From trials to a cure: the smallest change that worked in a trial and keeps the mathematics.

The order of preference: bad weights or data are repaired at their source; the logarithm of a probability is
computed from its logits; an operation that computes the same in float32; a module in FP32; an operation that
limits its result; a lower loss scale; another 16-bit format; FP32 everywhere. Removing samples comes last,
since similar ones will follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from halfguard.precision_names import Precision
from halfguard.records import Cause
from halfguard.records.autopsy import Cure, ReplayTrial
from halfguard.records.culprit import Culprit
from halfguard.records.plan import Island, PrecisionPlan
from halfguard.replaying.compositions import Probability
from halfguard.replaying.log_rewrite import patch_log
from halfguard.replaying.replayed_step import ReplayedStep
from halfguard.replaying.rewrite import make_patch
from halfguard.replaying.substitution import Place, StableForm
from halfguard.replaying.trials import BadSamples, Trials, describe_samples


def choose_cure(
    step: ReplayedStep, trials: Trials, culprit: Culprit | None
) -> tuple[Cure | None, BadSamples | None]:
    """Run the trials; return the best cure, and the samples that cause the fault, if any."""
    full = trials.precision(Precision.FP32)
    bf16 = trials.precision(Precision.BF16_MIXED)
    bad = trials.bad_samples()
    cures = list(_cures(step, trials, culprit, full, bf16, bad))
    return next((cure for cure in cures if cure is not None), None), bad


def _cures(
    step: ReplayedStep,
    trials: Trials,
    culprit: Culprit | None,
    full: ReplayTrial | None,
    bf16: ReplayTrial | None,
    bad: BadSamples | None,
) -> Iterator[Cure | None]:
    if culprit is not None and culprit.kind in ("parameter", "buffer"):
        yield _weights(trials, culprit)
    if _came_in_bad(step, culprit):
        yield _data(step, bad)
    rewritten = None if culprit is None else trials.log_of_probability(culprit)
    if culprit is not None and rewritten is not None:
        yield _rewritten(*rewritten, culprit)
    operation = None if culprit is None else trials.stable_operations(culprit)
    if operation is not None and _exact(operation[1]):
        yield _operation(*operation)
    if culprit is not None and full is not None and full.good:
        yield _island(step, trials, culprit)
    if operation is not None and operation[0].grad_norm:
        yield _operation(*operation)
    if step.record.step.cause is Cause.GRADIENT_OVERFLOW and full is not None and full.good:
        yield _scale(step, trials)
    yield _precision(bf16, "BF16 has the range of FP32, but 8 significant bits where FP16 has 11")
    yield _precision(full, "nothing smaller helped")
    if operation is not None:
        yield _operation(*operation)
    yield _data(step, bad)


def _came_in_bad(step: ReplayedStep, culprit: Culprit | None) -> bool:
    came_in = culprit is not None and culprit.kind == "input"
    return came_in or step.record.step.cause is Cause.BAD_BATCH


def _weights(trials: Trials, culprit: Culprit) -> Cure | None:
    trial = trials.zeroed(culprit.name)
    if not trial.good:
        return None
    return Cure(
        what="weights",
        sentence=f"The {culprit.kind} {culprit.name} was not finite before the step began: an earlier step "
        "caused it. Return to an earlier snapshot. With its bad numbers set to 0 this step is finite.",
        trial=trial.name,
        patch=f"with torch.no_grad():\n    model.state_dict()[{culprit.name!r}].nan_to_num_(0.0, 0.0, 0.0)",
    )


def _data(step: ReplayedStep, bad: BadSamples | None) -> Cure | None:
    if bad is None or not bad.without.good:
        return None
    about = step.record.micro_batches[bad.micro_batch].about
    place = f" of micro-batch {bad.micro_batch}" if len(step.batches) > 1 else " of the batch"
    verb, it = ("causes", "it") if len(bad.samples) == 1 else ("cause", "them")
    return Cure(
        what="data",
        sentence=f"{describe_samples(bad.samples).capitalize()}{place}{f' ({about})' if about else ''} "
        f"{verb} the fault; without {it} the step is good. Repair or remove {it} in the data.",
        trial=bad.without.name,
    )


def _rewritten(trial: ReplayTrial, used: Probability, culprit: Culprit) -> Cure | None:
    patch = patch_log(culprit.file, culprit.line)
    if not trial.good or not patch:
        return None
    return Cure(
        what="operation",
        sentence=f"At {culprit.place} write {used.text}: the probability is 0 in half before its logarithm "
        f"is taken, and its gradient is lost. The step is then {trial.note}.",
        trial=trial.name,
        patch=patch,
    )


def _exact(used: Mapping[Place, set[StableForm]]) -> bool:
    return all(stable.exact for forms in used.values() for stable in forms)


def _operation(trial: ReplayTrial, used: Mapping[Place, set[StableForm]]) -> Cure | None:
    if not trial.good:
        return None
    names = {place: {stable.name for stable in forms} for place, forms in used.items()}
    shown = "; ".join(
        f"{', '.join(f'halfguard.ops.{name}' for name in sorted(forms))} at {file}:{line}"
        for (file, line), forms in names.items()
    )
    limit = "" if _exact(used) else " It limits its result to the range of the dtype."
    if not trial.grad_norm:
        limit += " All gradients of this step are then 0: finite, but nothing is learnt from it."
    return Cure(
        what="operation", sentence=f"Use {shown}.{limit}", trial=trial.name, patch=make_patch(names)
    )


def _island(step: ReplayedStep, trials: Trials, culprit: Culprit) -> Cure | None:
    found = trials.islands(culprit)
    if found is None:
        return None
    trial, paths = found
    reason = f"{culprit.op} at {culprit.place} leaves the range of {culprit.dtype or 'half'}"
    plan = PrecisionPlan(
        precision=step.record.precision,
        islands=tuple(Island(module=path, reason=reason) for path in paths),
    )
    return Cure(
        what="island",
        sentence=f"Keep {' and '.join(map(repr, paths))} in FP32, by halfguard.fp32_island or by this plan.",
        trial=trial.name,
        patch=plan.to_yaml().rstrip("\n"),
    )


def _scale(step: ReplayedStep, trials: Trials) -> Cure | None:
    found = trials.lower_scale()
    if found is None:
        return None
    trial, scale = found
    return Cure(
        what="scale",
        sentence=f"The gradients fit at a loss scale of {scale:g}, not at {step.record.scale:g}: allow "
        "the scale to decrease to that value.",
        trial=trial.name,
        patch=f"scale:\n  floor: {scale!r}\n  init: {scale!r}",
    )


def _precision(trial: ReplayTrial | None, why: str) -> Cure | None:
    if trial is None or not trial.good:
        return None
    name = trial.name.rpartition(" ")[2]
    return Cure(
        what="precision",
        sentence=f"Train in {name}: {why}.",
        trial=trial.name,
        patch=f"precision: {name}",
    )
