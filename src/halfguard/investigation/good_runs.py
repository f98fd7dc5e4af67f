"""Fix a run without NaN or Inf that trains wrongly: what FP32 confirms, and the patches against it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from halfguard.investigation.advice import describe_place
from halfguard.investigation.cures import keep_each, keep_in_fp32, list_fallbacks, untried
from halfguard.investigation.high_rate import lower_rate
from halfguard.investigation.misuse import cures_of
from halfguard.investigation.passes import Event, Misused, PassResult, TrialKind, TrialPlan
from halfguard.investigation.proof import (
    SOON_SECONDS,
    Proven,
    can_patch,
    compare_with_fp32,
    prove,
    run_patched,
    why_worse,
)
from halfguard.investigation.reference import FURTHER, OVER, Reference, run_reference
from halfguard.investigation.script_passes import Investigation, Patched
from halfguard.investigation.trying import CALIBRATED, read_gradients, relative_error
from halfguard.investigation.worse_than_fp32 import Shortfall, ends_of, find_shortfall
from halfguard.records.autopsy import Cure

_KEPT = 0.8  # of the norm of the gradients in FP32
_NOISY = 0.5  # relative error of gradients
_AUDIT_SECONDS = 250.0  # an audit ends by itself a little before
_FEWEST_STEPS = 3  # which an audit needs to tell anything
_IN_FP32: tuple[TrialKind, ...] = ("statement", "slice", "function")
_ROUNDED = ("rounded integers", "lost digits", "lost increments")  # maybe where a cast was made
_OF_NUMBERS = (*_ROUNDED, "lost updates", "swallowed", "bad buffer", "no scaler", "zero gradients",
               "worse than FP32")  # fmt: skip


def fix_good_run(
    one: Investigation, first: PassResult, inspected: PassResult | None
) -> tuple[tuple[Misused, ...], Proven]:
    """Return what a script without a bad number misuses, and the first cure after which that is gone."""
    told = {(misused.kind, misused.place) for misused in first.misuse}
    by_audit = () if inspected is None else inspected.misuse
    seen = tuple(misused for misused in by_audit if (misused.kind, misused.place) not in told)
    known = (*first.misuse, *seen)
    ended = first.ended in ("finished", "exited", "steps")
    if first.error or not ended or not can_patch(one) or first.effort > SOON_SECONDS:
        return tuple(misused for misused in known if not misused.unsure), Proven()
    if not known and (not first.backward or first.ended == "steps"):  # FP32 has nothing to confirm
        return (), Proven()
    limits = Patched("", 2 * first.steps + FURTHER, 20 + 3 * first.seconds)
    reference = run_reference(one, limits)
    early, late = (
        tuple(found for misused in some for found in _confirmed(one, first, misused, reference))
        for some in (first.misuse, seen)
    )
    confirmed, short = (*early, *late), None
    if not confirmed:
        short = find_shortfall(one, first, reference.result, limits)
        confirmed = () if short is None else (*_suspects(known, first, short), short.misuse())
    if not confirmed:
        return lower_rate(one, first, reference, limits)
    ways = _list_ways(one, first, reference, confirmed)
    audit = inspected if late else None  # what only an audit has seen is looked for again

    def judge(result: PassResult, cure: Cure) -> str:
        left = fault_left(result, ways.faults[cure.patch], known)
        if not left and short is not None:
            left = short.left(ends_of(one, "patched"), ends_of(one, "fp32"))
        return left or why_worse(one, reference, cure)

    proven = prove(
        ways.precise,
        lambda patch: _run_audited(one, patch, limits, audit),
        judge,
        lambda: compare_with_fp32(one, reference),
        ways.larger,
    )
    if short is not None:  # what has no part in it is no finding
        confirmed = (short.misuse() if proven.cure is None else ways.faults[proven.cure.patch],)
    return confirmed, Proven(proven.cure, (reference.trial(None), *proven.trials))


@dataclass
class _Ways:
    """The cures of confirmed faults, each patch once: precise ones, and larger changes for the last."""

    precise: list[Cure] = field(default_factory=list)
    larger: list[Cure] = field(default_factory=list)
    faults: dict[str, Misused] = field(default_factory=dict)  # by patch

    def add(self, misused: Misused, cures: Iterable[Cure], *, larger: bool = False) -> None:
        """Add cures of a fault, but for those whose patch is known."""
        for cure in cures:
            if cure.patch not in self.faults:
                self.faults[cure.patch] = misused
                (self.larger if larger else self.precise).append(cure)


def _list_ways(
    one: Investigation, first: PassResult, reference: Reference, confirmed: Sequence[Misused]
) -> _Ways:
    ways, casts = _Ways(), reference.result.casts
    with contextlib.chdir(one.base):  # paths of patches begin there
        for misused in confirmed:
            text, code = misused.sentence, misused.code
            of_casts = casts if misused.kind in _ROUNDED else ()
            kept = (keep_in_fp32(place, casts) for place in (misused.place, *of_casts) if of_casts)
            late = [cure for way in kept for cure in untried(text, way, code)]
            if misused.place in of_casts:
                ways.add(misused, late[:1])
            ways.add(misused, cures_of(misused, first))
            ways.add(misused, _fp32_lines(one, misused))
            if misused.kind == "worse than FP32":
                late = list(keep_each(casts, one.script, text, code))
            ways.add(misused, late)
        if reference.judge(None) == "fine":
            for misused in (one for one in confirmed if one.kind in _OF_NUMBERS):
                text, code = f"{misused.sentence} ", misused.code
                larger = list_fallbacks(casts, first.made, one.script, text, code)
                ways.add(misused, larger, larger=True)
    return ways


def _run_audited(
    one: Investigation, patch: str, limits: Patched, audit: PassResult | None
) -> PassResult | None:
    """Run a patched script, and audit it as the script was audited before."""
    result = run_patched(one, patch, limits)
    if audit is None or result is None or result.error or result.event is not None:
        return result
    longer = replace(limits, patch=patch, seconds=max(limits.seconds, _AUDIT_SECONDS))
    again = one.run("inspect", "auditing the patched script", trial=longer)
    return with_audit(result, again, audit.inspected)


def _suspects(known: Sequence[Misused], first: PassResult, short: Shortfall) -> Iterator[Misused]:
    """Yield what may be the reason why a run ends worse than in FP32: a patched run has to show it."""
    unscaled = not first.scaler.used and first.made.autocast is not None
    place = first.made.backward
    text = (
        "Autocast runs in float16, but the loss is not scaled, so small gradients become 0. Scale the "
        f"loss with a GradScaler: {describe_place(place)}."
    )
    named = [
        Misused(kind="no scaler", code="HG207", sentence=text, place=place, scale=2.0**16)
    ] * unscaled
    unsure = (one for one in known if one.unsure)
    # Digits are also lost where increments are: that is the better reason.
    for one in (*named, *sorted(unsure, key=lambda one: one.kind == "lost digits")):
        sentence = f"{one.sentence} {short.misuse().sentence}"
        yield one.model_copy(update={"sentence": sentence, "unsure": False})


def with_audit(result: PassResult, audit: PassResult, inspected: int) -> PassResult:
    """Return a run of the patched script with what its audit found; one that did not end well is an error."""
    if audit.ended == "interrupted":
        return result.model_copy(update={"ended": "interrupted"})
    is_over = audit.ended in ("finished", "exited", "steps")
    if audit.error or not is_over or audit.inspected < min(inspected, _FEWEST_STEPS):
        error = audit.error or "the audit of the patched script did not finish"
        return result.model_copy(update={"error": error})
    return result.model_copy(update={"misuse": (*result.misuse, *audit.misuse)})


def fault_left(result: PassResult, misused: Misused, before: Sequence[Misused]) -> str:
    """Return why a run of the patched script is no cure of a misuse; empty if it is, and none is new."""
    sure = {one.kind for one in result.misuse if not one.unsure}
    new = sorted(sure - {one.kind for one in before})
    if result.error or result.ended not in OVER or not result.backward:
        return result.error or "it did not finish"
    if result.event is not None:
        return f"failed at step {result.event.step}"
    if new:
        return f"it has a new fault: {', '.join(new)}"
    # Digits are lost elsewhere, too: that is judged by what the script learns.
    left = sure if misused.kind == "lost digits" else {one.kind for one in result.misuse}
    return "the same fault remains" if misused.kind in left else ""


def _confirmed(
    one: Investigation, first: PassResult, misused: Misused, reference: Reference
) -> Iterator[Misused]:
    """Yield what is certain, or what FP32 confirms."""
    if misused.kind == "no scaler":
        yield from _lost_gradients(one, first, misused)
        return
    half, text = describe_place(first.made.half_weights), misused.sentence
    if misused.kind == "lost updates" and half:
        text += f" They were converted to 16-bit at {half}."
    worse = reference.worse(one.losses("losses")) if misused.unsure else ""
    if worse or not misused.unsure:
        text += f" The run confirms this: {worse}." if worse else ""
        yield misused.model_copy(update={"sentence": text, "unsure": False})


def _lost_gradients(one: Investigation, first: PassResult, misused: Misused) -> Iterator[Misused]:
    """Yield gradients without a scaler, if the same step has others in FP32."""
    is_off = any(known.kind == "scaler off" for known in first.misuse)  # which tells the same
    if is_off or not first.made.autocast_device:
        return
    event = Event(kind="loss", how="", step=0, backward=misused.backward)
    found = one.run("judge", "trying FP32", event=event)
    if not found.trials or found.differs_at is not None or not found.trials[0].gradients:
        return
    norms = _norms(found.trials[0].gradients, misused.sizes)
    pairs = [(half, full) for half, full in zip(misused.norms, norms, strict=False) if full > 0]
    lost = [full for half, full in pairs if half < _KEPT * full]
    if len(lost) > len(pairs) / 2 or _is_noise(one, event, found.trials[0].gradients):
        exponent = min(24, max(4, round(-math.log2(max(norms))) + 3))
        yield misused.model_copy(update={"scale": 2.0**exponent})


def _is_noise(one: Investigation, event: Event, full: str) -> bool:
    """Return whether gradients that kept their norm are still mostly rounding errors."""
    same = TrialPlan(name="unchanged", kind="unchanged")
    found = one.run("judge", "running the step again", event=event, change=same)
    kept = found.trials[0].gradients if found.trials and found.differs_at is None else ""
    return (relative_error(kept, full) or 0.0) > _NOISY


def _norms(file: str, sizes: tuple[int, ...]) -> list[float]:
    """Return the norm of each gradient that a trial has kept."""
    values = read_gradients(file)
    if sum(sizes) != len(values):
        return []
    return [float(one.norm()) for one in torch.split(values, list(sizes))]


def _fp32_lines(one: Investigation, misused: Misused) -> Iterator[Cure]:
    """Yield statements in FP32 for overflow that was swallowed, or digits or increments that were lost."""
    if misused.kind not in ("swallowed", "lost digits", "lost increments"):
        return
    event = Event(kind="loss", how="", step=0, backward=misused.backward)
    for kind in _IN_FP32:
        places = () if misused.place is None else (misused.place,)
        plan = TrialPlan(name="this line in FP32", kind=kind, places=places, scale=CALIBRATED)
        found = one.run("judge", "trying this line in FP32", event=event, change=plan)
        for trial in (one for one in found.trials if one.trial.good):
            yield from untried(misused.sentence, trial.patch, misused.code)
