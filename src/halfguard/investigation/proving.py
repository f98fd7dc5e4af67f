"""Prove a cure: run the script once more with the patch, and see whether it trains beyond the bad step.

This costs the script's own time up to the step again, so it is done only for failures that come soon.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from halfguard.investigation.passes import Event, Misused, MisuseKind, PassResult
from halfguard.records.autopsy import Cure, ReplayTrial, is_source_patch

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
