"""Choose a cure, and prove it: trials of the bad step, then a run of the patched script.

A run of the patched script costs its own time up to the step again, so it is done only for failures that come
soon.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from halfguard.investigation.advice import describe_place
from halfguard.investigation.crashes import Crash
from halfguard.investigation.cures import list_cures, untried
from halfguard.investigation.misuse_cures import cures_of, misuse_cures
from halfguard.investigation.passes import (
    Event,
    Misused,
    MisuseKind,
    PassResult,
    TrialKind,
    TrialPlan,
    TrialResult,
)
from halfguard.investigation.script_passes import Investigation, Patched
from halfguard.investigation.trial_choice import CALIBRATED, run_trials
from halfguard.records.autopsy import Cure, ReplayTrial, is_source_patch
from halfguard.repairs.applying import fits

PROOF = "the patched script, run from its start"
FAILED = "the script, patched"
SOON_SECONDS = 60.0  # of the first pass
SOON_STEPS = 1000
_FURTHER = 50  # optimizer steps
_MOST = 5  # patches
_SECONDS = 300.0  # for all of them
_OVER = ("finished", "exited", "steps", "late")  # ends of a patched script that ran well
# Trials of these change torch's state; their patches are edits of other lines, which no trial has run.
_SETTINGS = frozenset({"island", "scale", "precision"})

# Runs the patched script for a number of steps and seconds; None if the patch does not fit.
RunPatched = Callable[[str, int, float], PassResult | None]


@dataclass(frozen=True)
class Proven:
    """The cure that is recommended, and the runs of patched scripts."""

    cure: Cure | None = None
    trials: tuple[ReplayTrial, ...] = ()


def is_worth_it(first: PassResult, event: Event) -> bool:
    """Return whether the script fails soon enough to run it again."""
    return first.seconds <= SOON_SECONDS and event.step < SOON_STEPS


def prove(cures: Sequence[Cure], first: PassResult, event: Event, run: RunPatched) -> Proven:
    """Return the first cure with which the script trains on; else the best one that a trial has shown."""
    patched: dict[str, Cure] = {}
    for cure in cures:
        if is_source_patch(cure.patch):
            patched.setdefault(cure.patch, cure)
    trials, spent = list[ReplayTrial](), 0.0
    limit = 20 + 3 * first.seconds
    # Backward passes may be more than steps: a scaler skips some, or batches are accumulated.
    steps = max(event.step, event.backward) + _FURTHER
    for patch, cure in list(patched.items())[:_MOST]:
        if spent > _SECONDS:
            break
        result = run(patch, steps, limit)
        if result is None:
            continue
        if result.ended == "interrupted":
            return Proven(without_proof(cures), tuple(trials))
        spent += result.seconds
        good = _went_on(result, event)
        note = "" if not good else f"{result.steps} steps, {result.backward} backward passes"
        if not good:
            seen = (
                ""
                if result.event is None
                else f"bad at step {result.event.step}: {result.event.how}"
            )
            note = (result.error or seen or "it did not get beyond the step")[:200]
        name = PROOF if good else f"{FAILED}: {cure.trial or cure.what}"
        trials.append(ReplayTrial(name=name, good=good, loss=result.loss, note=note))
        if good:
            shown = f"{cure.trial}; {PROOF}" if cure.trial else PROOF
            return Proven(cure.model_copy(update={"trial": shown}), tuple(trials))
    best = best_tried(cures)
    if best is not None and is_source_patch(
        best.patch
    ):  # it was run in vain, or there was no time for it
        best = best.model_copy(update={"patch": ""})
    return Proven(best, tuple(trials))


def prove_silence(
    cures: Sequence[tuple[Cure, Misused]],
    before: Collection[MisuseKind],
    first: PassResult,
    run: RunPatched,
) -> Proven:
    """Return the first cure with which the script runs well, without this misuse and without a new one."""
    trials, spent = list[ReplayTrial](), 0.0
    for cure, misused in cures[:_MOST]:
        if spent > _SECONDS:
            break
        result = run(cure.patch, 2 * first.steps + _FURTHER, 20 + 3 * first.seconds)
        if result is None:
            continue
        if result.ended == "interrupted":
            break
        spent += result.seconds
        is_over = result.ended in _OVER and not result.error
        kinds = {one.kind for one in result.misuse}
        new = sorted(kinds - set(before))
        is_gone = misused.kind not in kinds
        good = is_over and is_gone and not new and result.event is None and result.backward > 0
        note = f"{result.steps} steps, {result.backward} backward passes"
        if not good:
            seen = "" if result.event is None else f"bad at step {result.event.step}"
            wrong = f"it has a new fault: {', '.join(new)}" if new else "it is misused as before"
            note = (result.error or seen or wrong)[:200]
        name = PROOF if good else f"{FAILED}: {misused.kind}"
        trials.append(ReplayTrial(name=name, good=good, loss=result.loss, note=note))
        if good:
            return Proven(cure.model_copy(update={"trial": PROOF}), tuple(trials))
    return Proven(None, tuple(trials))


def without_proof(cures: Sequence[Cure]) -> Cure | None:
    """Return the first cure that a trial has shown; with its patch if the trial has run the same edit."""
    best = best_tried(cures)
    if best is not None and is_source_patch(best.patch) and best.what in _SETTINGS:
        return best.model_copy(update={"patch": ""})
    return best


def best_tried(cures: Sequence[Cure]) -> Cure | None:
    """Return the first cure that a trial on the bad step has shown."""
    return next((cure for cure in cures if cure.trial), None)


def _went_on(result: PassResult, event: Event) -> bool:
    over = result.ended in _OVER
    further = result.backward > event.backward and result.steps > event.step
    return over and further and result.event is None and not result.error


_AUDIT_SECONDS = 250.0  # an audit ends by itself a little before
_FEWEST_STEPS = 3  # which an audit needs to tell anything
_KEPT = 0.8  # of the norm of the gradients in FP32
_IN_FP32: tuple[TrialKind, ...] = ("statement", "slice", "function")


def cure_bad_run(
    one: Investigation, first: PassResult, event: Event, second: PassResult, crash: Crash | None
) -> Proven:
    """Choose a cure: the first one whose patch carries the script beyond the bad step."""
    script = "" if one.target.is_module else str(one.folder / one.target.name)
    with contextlib.chdir(one.base):  # paths of patches begin there
        cures = list_cures(second, event, script) if crash is None else crash.cures()
        cures = [*misuse_cures(first), *cures]
    if not _can_patch(one) or second.ended == "interrupted" or not is_worth_it(first, event):
        return Proven(without_proof(cures))
    return prove(cures, first, event, lambda *how: _run_patched(one, *how))


def cure_good_run(
    one: Investigation, first: PassResult, inspected: PassResult | None
) -> tuple[tuple[Misused, ...], Proven]:
    """Return what a script without a bad number misuses, and the first cure after which that is gone."""
    seen = () if inspected is None else inspected.misuse
    ended = first.ended in ("finished", "exited", "steps")
    if first.error or not ended or not _can_patch(one) or first.seconds > SOON_SECONDS:
        told = tuple(misused for misused in seen if misused.kind != "no scaler")
        return (*first.misuse, *told), Proven()
    seen = tuple(found for misused in seen for found in _confirmed(one, first, misused))
    cures: list[tuple[Cure, Misused]] = []
    with contextlib.chdir(one.base):
        for misused in (*first.misuse, *seen):
            cures += [(cure, misused) for cure in cures_of(misused, first)]
    for misused in seen:
        cures += [(cure, misused) for cure in _fp32_lines(one, misused)]

    def run(patch: str, steps: int, seconds: float) -> PassResult | None:
        result = _run_patched(one, patch, steps, seconds)
        if not seen or result is None or result.error or result.event is not None:
            return result
        doing = "auditing the patched script"
        again = one.run("inspect", doing, trial=Patched(patch, steps, max(seconds, _AUDIT_SECONDS)))
        return with_audit(result, again, 0 if inspected is None else inspected.inspected)

    # An audit finds again what was not confirmed before.
    known = (*first.misuse, *(() if inspected is None else inspected.misuse))
    before = {misused.kind for misused in known}
    return (*first.misuse, *seen), prove_silence(cures, before, first, run)


def with_audit(result: PassResult, audit: PassResult, inspected: int) -> PassResult:
    """Return a run of the patched script with what its audit found; one that did not end well is an error."""
    if audit.ended == "interrupted":
        return result.model_copy(update={"ended": "interrupted"})
    is_over = audit.ended in ("finished", "exited", "steps")
    if audit.error or not is_over or audit.inspected < min(inspected, _FEWEST_STEPS):
        error = audit.error or "the audit of the patched script did not get to its end"
        return result.model_copy(update={"error": error})
    return result.model_copy(update={"misuse": (*result.misuse, *audit.misuse)})


def _confirmed(one: Investigation, first: PassResult, misused: Misused) -> Iterator[Misused]:
    """Yield what is known; gradients without a scaler only if the same step has others in FP32."""
    half = describe_place(first.made.half_weights)
    if misused.kind == "lost updates" and half:
        text = f"{misused.sentence} They became half at {half}."
        yield misused.model_copy(update={"sentence": text})
        return
    if misused.kind != "no scaler":
        yield misused
        return
    is_off = any(known.kind == "scaler off" for known in first.misuse)  # which tells the same
    if is_off or not first.made.autocast_device:
        return
    found = one.run(
        "judge", "trying FP32", event=Event(kind="loss", how="", step=0, backward=misused.backward)
    )
    if not found.trials or found.differs_at is not None or not found.trials[0].gradients:
        return
    norms = _norms(Path(found.trials[0].gradients), misused.sizes)
    pairs = [(half, full) for half, full in zip(misused.norms, norms, strict=False) if full > 0]
    lost = [full for half, full in pairs if half < _KEPT * full]
    if len(lost) > len(pairs) / 2:
        exponent = min(24, max(4, round(-math.log2(max(norms))) + 3))
        yield misused.model_copy(update={"scale": 2.0**exponent})


def _norms(file: Path, sizes: tuple[int, ...]) -> list[float]:
    """Return the norm of each gradient that a trial has kept."""
    values = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float64)
    return (
        [float(one.norm()) for one in torch.split(values, list(sizes))]
        if sum(sizes) == len(values)
        else []
    )


def _fp32_lines(one: Investigation, misused: Misused) -> Iterator[Cure]:
    """Yield statements in FP32 for overflow that was swallowed there."""
    if misused.kind != "swallowed":
        return
    event = Event(kind="loss", how="", step=0, backward=misused.backward)
    for kind in _IN_FP32:
        plan = TrialPlan(name="this line in FP32", kind=kind, place=misused.place)
        found = one.run("judge", "trying this line in FP32", event=event, change=plan)
        for trial in found.trials:
            if trial.trial.good and trial.patch:
                yield untried(misused.sentence, trial.patch, "HG609")


def _can_patch(one: Investigation) -> bool:
    return one.copy is not None and one.ranks is None


def _run_patched(one: Investigation, patch: str, steps: int, seconds: float) -> PassResult | None:
    if not fits(patch, one.base):
        return None
    return one.run("sense", "running the patched script", trial=Patched(patch, steps, seconds))


def try_in_passes(
    one: Investigation, first: PassResult, event: Event, second: PassResult
) -> PassResult:
    """Run trials as passes of their own, where they cannot be forked; only FP32, if they take long."""
    older = second.culprit is not None and second.culprit.kind == "parameter"
    if second.differs_at is not None or (older and event.kind == "parameters"):
        return second

    def run(plan: TrialPlan) -> TrialResult | None:
        cheap = one.ranks is None and is_worth_it(first, event)
        if plan.kind != "fp32" and not (cheap and plan.scale in (None, CALIBRATED)):
            return None
        found = one.run("judge", f"trying {plan.name}", event=event, change=plan)
        return found.trials[0] if found.trials and found.differs_at is None else None

    return second.model_copy(update={"trials": tuple(run_trials(second, event, run))})
