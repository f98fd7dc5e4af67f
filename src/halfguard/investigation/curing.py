"""Choose a cure, and prove it: trials of the bad step, then a run of the patched script."""

from __future__ import annotations

import contextlib

from halfguard.investigation.crashes import Crash
from halfguard.investigation.cures import list_cures
from halfguard.investigation.misuse_patches import cures_of, misuse_cures
from halfguard.investigation.passes import Event, PassResult, TrialPlan, TrialResult
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


def cure_good_run(one: Investigation, first: PassResult, inspected: PassResult | None) -> Proven:
    """Choose a cure of what a script without a bad number misuses: the first after which that is gone."""
    ended = first.ended in ("finished", "exited", "steps")
    if first.error or not ended or not _can_patch(one) or first.seconds > SOON_SECONDS:
        return Proven()
    with contextlib.chdir(one.base):
        cures = [(cure, misused) for misused in first.misuse for cure in cures_of(misused, first)]
    return prove_silence(cures, first, lambda *how: _run_patched(one, *how))


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
