"""Fix a run that failed: trials of the bad step, then runs of the patched script."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from halfguard.investigation.advice import advise_on_reference, describe_place
from halfguard.investigation.cures import (
    judge_fp32,
    keep_in_fp32,
    list_cures,
    list_fallbacks,
    untried,
)
from halfguard.investigation.misuse import Crash, misuse_cures
from halfguard.investigation.passes import Event, PassResult, TrialPlan, TrialResult
from halfguard.investigation.proof import (
    Proven,
    can_patch,
    compare_with_fp32,
    is_worth_it,
    prove,
    run_patched,
    why_worse,
    without_proof,
)
from halfguard.investigation.reference import FURTHER, OVER, Reference, run_reference
from halfguard.investigation.script_passes import Investigation, Patched
from halfguard.investigation.trying import CALIBRATED, run_trials
from halfguard.records.autopsy import Cure
from halfguard.repairs.masks import divide_by_nonzero

_LONGER = 4  # times as far as FP32 a patched script runs: what it has only put off may fail again


def fix_bad_run(
    one: Investigation, first: PassResult, event: Event, second: PassResult, crash: Crash | None
) -> Proven:
    """Choose a cure: the first one whose patch carries the script beyond the bad step, as FP32 does."""
    script = one.script
    with contextlib.chdir(one.base):  # paths of patches begin there
        cures = list_cures(second, event, script) if crash is None else crash.cures()
        cures = [*misuse_cures(first), *_by_numpy(first, second), *cures]
    step = in_fp32 = judge_fp32(second.trials)
    if not can_patch(one) or second.ended == "interrupted" or not is_worth_it(first, event):
        return Proven(without_proof(cures), in_fp32=in_fp32)
    # Backward passes may be more than steps: a scaler skips some, or batches are accumulated.
    steps = max(event.step, event.backward) + FURTHER
    limits = Patched("", steps, 20 + 3 * first.seconds)
    of_data = second.culprit is not None and second.culprit.kind == "input"
    reference = Reference(PassResult(), []) if of_data else run_reference(one, limits)
    known = reference.judge(event)
    advice = advise_on_reference(in_fp32, known, second.made, reference.result.casts)
    in_fp32 = in_fp32 if known == "unknown" else known
    if in_fp32 == "fails":  # no other precision is a cure, nor a limit that hides growing numbers
        hiding = {one.trial.name for one in second.trials if one.limits and step == "fine"}
        cures = [one for one in cures if one.what != "precision" and one.trial not in hiding]
    casts = reference.result.casts
    with contextlib.chdir(one.base):
        if advice:  # the step alone shows nothing
            kept = (keep_in_fp32(place, casts) for place in casts)
            early = [cure for patch in kept for cure in untried(advice, patch, "HG601")]
            cures = [*early, *(cure.model_copy(update={"trial": ""}) for cure in cures)]
        fallbacks = list(list_fallbacks(casts, second.made, script)) if known == "fine" else []

    def judge(result: PassResult, cure: Cure) -> str:
        return failure(result, event) or why_worse(one, reference, cure)

    def run(patch: str) -> PassResult | None:
        return run_patched(one, patch, replace(limits, steps=_LONGER * steps))

    proven = prove(cures, run, judge, lambda: compare_with_fp32(one, reference), fallbacks)
    trials = (reference.trial(event), *proven.trials)
    trials = trials if reference.result.backward else proven.trials
    if proven.cure is not None and step != "unknown" and in_fp32 == "fails":
        # With the fault mended the script trains: FP32 fails later, by the same fault.
        in_fp32 = step
    return Proven(proven.cure, trials, in_fp32, advice)


def _by_numpy(first: PassResult, second: PassResult) -> Iterator[Cure]:
    """Yield divisions by what is not 0, where NumPy made numbers that are not finite."""
    of_data = second.culprit is not None and second.culprit.kind == "input"
    for place, what in first.numpy if of_data else ():
        text = (
            f"NumPy reported {what} at {describe_place(place)}. Divide by 1 where the divisor is 0."
        )
        yield from untried(text, divide_by_nonzero(place), "HG612")


def failure(result: PassResult, event: Event) -> str:
    """Return why a run of the patched script has not gone on beyond an event; empty if it has."""
    further = result.backward > event.backward and result.steps > event.step
    if result.ended in OVER and further and result.event is None and not result.error:
        return ""
    seen = "" if result.event is None else f"failed at step {result.event.step}: {result.event.how}"
    return result.error or seen or "it did not get past the failing step"


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
