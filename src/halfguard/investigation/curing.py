"""Choose a cure, and prove it: trials of the bad step, then a run of the patched script."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import torch

from halfguard.investigation.advice import describe_place
from halfguard.investigation.crashes import Crash
from halfguard.investigation.cures import list_cures, untried
from halfguard.investigation.misuse_patches import cures_of, misuse_cures
from halfguard.investigation.passes import (
    Event,
    Misused,
    PassResult,
    TrialKind,
    TrialPlan,
    TrialResult,
)
from halfguard.investigation.patching import fits
from halfguard.investigation.proving import (
    SOON_SECONDS,
    Proven,
    is_worth_it,
    prove,
    prove_silence,
    without_proof,
)
from halfguard.investigation.script_passes import Investigation, Patched
from halfguard.investigation.trial_choice import CALIBRATED, run_trials
from halfguard.records.autopsy import Cure

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
                yield untried(misused.sentence, trial.patch)


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
