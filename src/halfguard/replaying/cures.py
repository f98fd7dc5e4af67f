"""From trials to advice: the smallest change that was seen to work and that keeps the mathematics.

The order: what came in bad is mended where it came from; an operation that computes the same in float32
comes before a module in FP32, and that before an operation that limits its result; then the loss scale,
another 16-bit format, FP32 everywhere. Leaving samples out comes last, since others like them will come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from halfguard.precision.modes import Precision
from halfguard.records import Cause
from halfguard.records.autopsy import Cure, Trial
from halfguard.records.culprit import Culprit
from halfguard.records.plan import Island, PrecisionPlan
from halfguard.replaying.replayed_step import ReplayedStep
from halfguard.replaying.rewrite import patched
from halfguard.replaying.substitute import Place, Stable
from halfguard.replaying.trials import Apple, Trials, named


def choose(
    step: ReplayedStep, trials: Trials, culprit: Culprit | None
) -> tuple[Cure | None, Apple | None]:
    """Run the trials that make sense; the cure, and the samples to blame."""
    full = trials.precision(Precision.FP32)
    brain = trials.precision(Precision.BF16_MIXED)
    apple = trials.apple()
    cures = list(_cures(step, trials, culprit, full, brain, apple))
    return next((cure for cure in cures if cure is not None), None), apple


def _cures(
    step: ReplayedStep,
    trials: Trials,
    culprit: Culprit | None,
    full: Trial | None,
    brain: Trial | None,
    apple: Apple | None,
) -> Iterator[Cure | None]:
    if culprit is not None and culprit.kind in ("parameter", "buffer"):
        yield _weights(trials, culprit)
    if _came_in_bad(step, culprit):
        yield _data(step, apple)
    operation = None if culprit is None else trials.stable_operations(culprit)
    if operation is not None and _exact(operation[1]):
        yield _operation(*operation)
    if culprit is not None and full is not None and full.good:
        yield _island(step, trials, culprit)
    if operation is not None and operation[0].grad_norm:
        yield _operation(*operation)
    if step.record.step.cause is Cause.GRADIENT_OVERFLOW and full is not None and full.good:
        yield _scale(step, trials)
    yield _precision(brain, "BF16 has the range of FP32, with three bits less of precision")
    yield _precision(full, "nothing smaller helped")
    if operation is not None:
        yield _operation(*operation)
    yield _data(step, apple)


def _came_in_bad(step: ReplayedStep, culprit: Culprit | None) -> bool:
    came_in = culprit is not None and culprit.kind == "input"
    return came_in or step.record.step.cause is Cause.BAD_BATCH


def _weights(trials: Trials, culprit: Culprit) -> Cure | None:
    trial = trials.mended(culprit.name)
    if not trial.good:
        return None
    return Cure(
        what="weights",
        sentence=f"The {culprit.kind} {culprit.name} was not finite before the step began: an earlier step "
        "did it. Go back to a snapshot from before; with its bad numbers set to 0 this step is finite.",
        trial=trial.name,
        patch=f"with torch.no_grad():\n    model.state_dict()[{culprit.name!r}].nan_to_num_(0.0, 0.0, 0.0)",
    )


def _data(step: ReplayedStep, apple: Apple | None) -> Cure | None:
    if apple is None or not apple.without.good:
        return None
    about = step.record.micro_batches[apple.micro_batch].about
    place = f" of micro-batch {apple.micro_batch}" if len(step.batches) > 1 else " of the batch"
    verb = "brings" if len(apple.samples) == 1 else "bring"
    return Cure(
        what="data",
        sentence=f"{named(apple.samples).capitalize()}{place}{f' ({about})' if about else ''} {verb} it "
        "about; without, the step is good. Mend or drop it in the data.",
        trial=apple.without.name,
    )


def _exact(used: Mapping[Place, set[Stable]]) -> bool:
    return all(stable.exact for forms in used.values() for stable in forms)


def _operation(trial: Trial, used: Mapping[Place, set[Stable]]) -> Cure | None:
    if not trial.good:
        return None
    names = {place: {stable.name for stable in forms} for place, forms in used.items()}
    shown = "; ".join(
        f"{', '.join(f'halfguard.ops.{name}' for name in sorted(forms))} at {file}:{line}"
        for (file, line), forms in names.items()
    )
    limit = "" if _exact(used) else " It limits its result to what the dtype holds."
    if not trial.grad_norm:
        limit += " All gradients of this step are 0 then: finite, but nothing is learnt from it."
    return Cure(
        what="operation", sentence=f"Use {shown}.{limit}", trial=trial.name, patch=patched(names)
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
        sentence=f"The gradients fit at a loss scale of {scale:g}, not at {step.record.scale:g}: let the "
        "scale fall that far.",
        trial=trial.name,
        patch=f"scale:\n  floor: {scale!r}\n  init: {scale!r}",
    )


def _precision(trial: Trial | None, why: str) -> Cure | None:
    if trial is None or not trial.good:
        return None
    name = trial.name.rpartition(" ")[2]
    return Cure(
        what="precision",
        sentence=f"Train in {name}: {why}.",
        trial=trial.name,
        patch=f"precision: {name}",
    )
