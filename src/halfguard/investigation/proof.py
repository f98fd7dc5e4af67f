"""Prove a fix: run the patched script, and compare it with the script in FP32.

A patch is called a fix only if the patched script was run, went on, and learns as the script does in FP32.
Such runs cost the script's own time again, so they are done only for failures that come soon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from halfguard.investigation.passes import Event, PassResult
from halfguard.investigation.printed_numbers import compare_last, farther, is_as_good
from halfguard.investigation.reference import Reference
from halfguard.investigation.script_passes import Investigation, Patched
from halfguard.records.autopsy import Cure, ReplayTrial, is_source_patch
from halfguard.records.script_answer import InFP32
from halfguard.repairs.applying import fits

PROOF = "the patched script, run from the start"
FAILED = "the script, patched"
SOON_SECONDS = 60.0  # of the first pass
SOON_STEPS = 1000
_MOST = 6  # patches
_SECONDS = 300.0  # for all of them
# Trials of these change torch's state; their patches are edits of other lines, which no trial has run.
_SETTINGS = frozenset({"island", "scale", "precision"})
_IN_ANY_PRECISION = ("HG215", "HG217")  # gradients add up, or are too small
RunPatched = Callable[[str], PassResult | None]  # None if the patch does not fit
Judge = Callable[[PassResult, Cure], str]  # what is wrong with a run of a patched script


@dataclass(frozen=True)
class Proven:
    """The cure that is recommended, the runs of patched scripts, and what FP32 makes of the script."""

    cure: Cure | None = None
    trials: tuple[ReplayTrial, ...] = ()
    in_fp32: InFP32 = "unknown"
    advice: str = ""


def is_worth_it(first: PassResult, event: Event) -> bool:
    """Return whether the script fails soon enough to run it again."""
    return first.effort <= SOON_SECONDS and event.step < SOON_STEPS


def prove(
    cures: Sequence[Cure],
    run: RunPatched,
    judge: Judge,
    compare: Callable[[], str] = str,
    fallbacks: Sequence[Cure] = (),
) -> Proven:
    """Return the first cure with which the script trains; else the best one that a trial has shown.

    What a run of the patched script has refuted is not recommended. ``compare`` returns how a good run
    compares with FP32. Fallbacks are larger changes, for the case that no cure is proven.
    """
    patches = dict.fromkeys(cure.patch for cure in cures if is_source_patch(cure.patch))
    tried = dict.fromkeys((*list(patches)[:_MOST], *(one.patch for one in fallbacks)))
    trials, spent, refuted = list[ReplayTrial](), 0.0, set[str]()
    for patch in tried:
        cure = next(one for one in (*cures, *fallbacks) if one.patch == patch)
        result = run(patch) if spent <= _SECONDS else None
        if result is None:
            continue
        if result.ended == "interrupted":
            return Proven(without_proof(cures), tuple(trials))
        spent += result.seconds
        wrong = judge(result, cure)
        if not wrong:
            ended = "ended" if result.ended in ("finished", "exited") else "stopped"
            note = "; ".join(filter(None, [f"{ended} after {result.steps} steps", compare()]))
            trials.append(ReplayTrial(name=PROOF, good=True, loss=result.loss, note=note))
            shown = f"{cure.trial}; {PROOF}" if cure.trial else PROOF
            return Proven(cure.model_copy(update={"trial": shown}), tuple(trials))
        refuted.add(patch)
        edit = next((row[1:] for row in patch.splitlines()[2:] if row.startswith("+")), cure.what)
        name = f"{FAILED}: {cure.trial or edit.strip()}"
        trials.append(ReplayTrial(name=name, good=False, loss=result.loss, note=wrong[:200]))
    best = best_tried([cure for cure in cures if cure.patch not in refuted])
    if best is not None and is_source_patch(best.patch):  # there was no time for it
        best = best.model_copy(update={"patch": ""})
    return Proven(best, tuple(trials))


def without_proof(cures: Sequence[Cure]) -> Cure | None:
    """Return the first cure that a trial has shown; with its patch if the trial has run the same edit."""
    best = best_tried(cures)
    if best is not None and is_source_patch(best.patch) and best.what in _SETTINGS:
        return best.model_copy(update={"patch": ""})
    return best


def best_tried(cures: Sequence[Cure]) -> Cure | None:
    """Return the first cure that a trial on the bad step has shown."""
    return next((cure for cure in cures if cure.trial), None)


def can_patch(one: Investigation) -> bool:
    """Return whether a copy of the script can be patched; the ranks of one share theirs."""
    return one.copy is not None and one.ranks is None


def run_patched(one: Investigation, patch: str, limits: Patched) -> PassResult | None:
    """Run the script with a patch; None if it does not fit."""
    if not fits(patch, one.base):
        return None
    return one.run("sense", "running the patched script", trial=replace(limits, patch=patch))


def why_worse(one: Investigation, reference: Reference, cure: Cure) -> str:
    """Return by how much the patched script is worse than FP32; with this misuse FP32 is no measure."""
    if cure.code in _IN_ANY_PRECISION:
        return ""
    before, now, full = (one.printed.get(name, "") for name in ("losses", "patched", "fp32"))
    if is_as_good(now, full):  # losses of a moving target are no measure
        return ""
    return reference.worse(one.losses("patched")) or farther(before, now, full)


def compare_with_fp32(one: Investigation, reference: Reference) -> str:
    """Return how the patched script compares with FP32: its losses, and what it prints."""
    printed = compare_last(one.printed.get("patched", ""), one.printed.get("fp32", ""))
    return "; ".join(filter(None, (reference.compare(one.losses("patched")), printed)))
