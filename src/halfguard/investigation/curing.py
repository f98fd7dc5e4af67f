"""Choose a cure, and prove it: trials of the bad step, then a run of the patched script.

A patch is called a fix only if the patched script was run, went on, and learns as the script does in FP32
from its first line: casts to half become FP32 there, autocast is off, and scalers do nothing. Such runs cost
the script's own time again, so they are done only for failures that come soon.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from halfguard.investigation.advice import advise_on_reference, describe_place
from halfguard.investigation.cures import (
    judge_fp32,
    keep_each,
    keep_in_fp32,
    list_cures,
    list_fallbacks,
    untried,
)
from halfguard.investigation.misuse import Crash, cures_of, misuse_cures
from halfguard.investigation.passes import (
    Event,
    Misused,
    PassResult,
    Place,
    TrialKind,
    TrialPlan,
    TrialResult,
)
from halfguard.investigation.printed_numbers import compare_last, farther, is_as_good, worse_numbers
from halfguard.investigation.script_passes import Investigation, Patched
from halfguard.investigation.trying import CALIBRATED, relative_error, run_trials
from halfguard.investigation.worse_than_fp32 import Shortfall, ends_of, find_shortfall
from halfguard.records.autopsy import Cure, ReplayTrial, is_source_patch
from halfguard.records.script_answer import InFP32
from halfguard.repairs import settings
from halfguard.repairs.applying import fits
from halfguard.repairs.masks import divide_by_nonzero

_IN_FP32_NAME = "the script in FP32, from its first line"
_FEWEST = 2  # losses that are compared
_MOST_LOST = 0.5  # of what FP32 has gained
_NOISE = 3.0  # standard errors
_DIVERGED = 2.0  # times the highest losses of FP32: noise of the run itself does not excuse that
OVER = ("finished", "exited", "steps", "late")  # ends of a script that ran well


@dataclass(frozen=True)
class Reference:
    """A run in FP32, and its losses."""

    result: PassResult
    losses: list[float]

    def judge(self, event: Event | None) -> InFP32:
        """Return whether it trains, beyond the step of an event if there was one."""
        result = self.result
        if result.event is not None and result.event.kind != "exception":
            return "fails"
        step, backward = (-1, -1) if event is None else (event.step, event.backward)
        over = result.ended in OVER and not result.error
        is_beyond = result.steps > step and result.backward > backward
        return "fine" if over and is_beyond else "unknown"

    def trial(self, event: Event | None) -> ReplayTrial:
        """Return the run as a row of the trials."""
        seen, result = self.result.event, self.result
        bad = "" if seen is None else f"failed at step {seen.step}: {seen.how}"
        note = result.error or bad or f"{result.steps} steps"
        good = self.judge(event) == "fine"
        return ReplayTrial(name=_IN_FP32_NAME, good=good, loss=result.loss, note=note[:200])

    def worse(self, losses: Sequence[float]) -> str:
        """Return by how much a run is worse at its end; empty if it is not, or if FP32 learns nothing.

        Both runs have the same batches, so that losses are compared in pairs. What FP32 gains is the way down
        from its highest quarter: a loss may rise at first.
        """
        part = self._quarter(losses)
        if not part:
            return ""
        quarters = [self.losses[at : at + part] for at in range(0, 4 * part, part)]
        full, now = median(quarters[-1]), median(losses[3 * part : 4 * part])
        after = f"after {min(len(losses), len(self.losses))} backward passes"
        text = f"it learns less than in FP32: the loss is {now:.4g} (FP32: {full:.4g}) {after}"
        if not math.isfinite(now):
            return text
        highest = max(map(median, quarters))
        gained = highest - full
        apart = [a - b for a, b in zip(losses[3 * part :], quarters[-1], strict=False)]
        lost = median(apart)
        diverged = _DIVERGED * max(abs(highest), gained)
        limit = min(max(_MOST_LOST * gained, _noise(apart)), diverged)
        return text if gained > _noise(quarters[-1]) and lost > limit else ""

    def compare(self, losses: Sequence[float]) -> str:
        """Return the losses of both runs in the same backward passes; empty if there are too few."""
        part = self._quarter(losses)
        if not part:
            return ""
        now, full = (median(some[3 * part : 4 * part]) for some in (losses, self.losses))
        where = f"backward passes {3 * part + 1} to {4 * part}"
        return f"median loss of {where}: {now:.4g} (FP32: {full:.4g})"

    def _quarter(self, losses: Sequence[float]) -> int:
        """Return a quarter of how many losses both runs have; 0 if they cannot be compared."""
        part = min(len(losses), len(self.losses)) // 4
        return part if part >= _FEWEST and self.judge(None) == "fine" else 0


def _noise(values: Sequence[float]) -> float:
    """Return how far the median of values may be off."""
    middle = median(values)
    return _NOISE * median(abs(value - middle) for value in values) / math.sqrt(len(values))


PROOF = "the patched script, run from the start"
FAILED = "the script, patched"
SOON_SECONDS = 60.0  # of the first pass
SOON_STEPS = 1000
_FURTHER = 50  # optimizer steps
_LONGER = 4  # times as far as FP32 a patched script runs: what it has only put off may fail again
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


def failure(result: PassResult, event: Event) -> str:
    """Return why a run of the patched script has not gone on beyond an event; empty if it has."""
    further = result.backward > event.backward and result.steps > event.step
    if result.ended in OVER and further and result.event is None and not result.error:
        return ""
    seen = "" if result.event is None else f"failed at step {result.event.step}: {result.event.how}"
    return result.error or seen or "it did not get past the failing step"


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


def without_proof(cures: Sequence[Cure]) -> Cure | None:
    """Return the first cure that a trial has shown; with its patch if the trial has run the same edit."""
    best = best_tried(cures)
    if best is not None and is_source_patch(best.patch) and best.what in _SETTINGS:
        return best.model_copy(update={"patch": ""})
    return best


def best_tried(cures: Sequence[Cure]) -> Cure | None:
    """Return the first cure that a trial on the bad step has shown."""
    return next((cure for cure in cures if cure.trial), None)


_AUDIT_SECONDS = 250.0  # an audit ends by itself a little before
_FEWEST_STEPS = 3  # which an audit needs to tell anything
_KEPT = 0.8  # of the norm of the gradients in FP32
_NOISY = 0.5  # relative error of gradients
_IN_FP32: tuple[TrialKind, ...] = ("statement", "slice", "function")
_ROUNDED = ("rounded integers", "lost digits", "lost increments")  # maybe where a cast was made
_OF_NUMBERS = (*_ROUNDED, "lost updates", "swallowed", "bad buffer", "no scaler", "zero gradients",
               "worse than FP32")  # fmt: skip


def cure_bad_run(
    one: Investigation, first: PassResult, event: Event, second: PassResult, crash: Crash | None
) -> Proven:
    """Choose a cure: the first one whose patch carries the script beyond the bad step, as FP32 does."""
    script = one.script
    with contextlib.chdir(one.base):  # paths of patches begin there
        cures = list_cures(second, event, script) if crash is None else crash.cures()
        cures = [*misuse_cures(first), *_by_numpy(first, second), *cures]
    step = in_fp32 = judge_fp32(second.trials)
    if not _can_patch(one) or second.ended == "interrupted" or not is_worth_it(first, event):
        return Proven(without_proof(cures), in_fp32=in_fp32)
    # Backward passes may be more than steps: a scaler skips some, or batches are accumulated.
    steps, seconds = max(event.step, event.backward) + _FURTHER, 20 + 3 * first.seconds
    of_data = second.culprit is not None and second.culprit.kind == "input"
    reference = Reference(PassResult(), []) if of_data else run_reference(one, steps, seconds)
    known = reference.judge(event)
    advice = advise_on_reference(in_fp32, known, second.made, reference.result.casts)
    in_fp32 = in_fp32 if known == "unknown" else known
    if in_fp32 == "fails":  # no other precision is a cure, nor a limit that hides growing numbers
        limits = {one.trial.name for one in second.trials if one.limits and step == "fine"}
        cures = [one for one in cures if one.what != "precision" and one.trial not in limits]
    casts = reference.result.casts
    with contextlib.chdir(one.base):
        if advice:  # the step alone shows nothing
            kept = (keep_in_fp32(place, casts) for place in casts)
            early = [cure for patch in kept for cure in untried(advice, patch, "HG601")]
            cures = [*early, *(cure.model_copy(update={"trial": ""}) for cure in cures)]
        fallbacks = list(list_fallbacks(casts, second.made, script)) if known == "fine" else []

    def judge(result: PassResult, cure: Cure) -> str:
        return failure(result, event) or _worse(one, reference, cure)

    def run(patch: str) -> PassResult | None:
        return _run_patched(one, patch, _LONGER * steps, seconds)

    proven = prove(cures, run, judge, lambda: _compare(one, reference), fallbacks)
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


def _worse(one: Investigation, reference: Reference, cure: Cure) -> str:
    """Return by how much the patched script is worse than FP32; with this misuse FP32 is no measure."""
    if cure.code in _IN_ANY_PRECISION:
        return ""
    before, now, full = (one.printed.get(name, "") for name in ("losses", "patched", "fp32"))
    if is_as_good(now, full):  # losses of a moving target are no measure
        return ""
    return reference.worse(one.losses("patched")) or farther(before, now, full)


def _compare(one: Investigation, reference: Reference) -> str:
    """Return how the patched script compares with FP32: its losses, and what it prints."""
    printed = compare_last(one.printed.get("patched", ""), one.printed.get("fp32", ""))
    return "; ".join(filter(None, (reference.compare(one.losses("patched")), printed)))


def run_reference(one: Investigation, steps: int, seconds: float) -> Reference:
    """Run the script in FP32 from its first line."""
    limits = Patched("", steps, seconds)
    result = one.run("sense", "running the script in FP32", trial=limits, in_fp32=True)
    return Reference(result, one.losses("fp32"))


def cure_good_run(
    one: Investigation, first: PassResult, inspected: PassResult | None
) -> tuple[tuple[Misused, ...], Proven]:
    """Return what a script without a bad number misuses, and the first cure after which that is gone."""
    told = {(one.kind, one.place) for one in first.misuse}
    found = () if inspected is None else inspected.misuse
    seen = tuple(one for one in found if (one.kind, one.place) not in told)
    ended = first.ended in ("finished", "exited", "steps")
    known = (*first.misuse, *seen)  # an audit finds again what was not confirmed before
    if first.error or not ended or not _can_patch(one) or first.effort > SOON_SECONDS:
        return tuple(misused for misused in known if not misused.unsure), Proven()
    if not known and (not first.backward or first.ended == "steps"):  # FP32 has nothing to confirm
        return (), Proven()
    steps, seconds = 2 * first.steps + _FURTHER, 20 + 3 * first.seconds
    reference = run_reference(one, steps, seconds)
    early, seen = (
        tuple(found for misused in some for found in _confirmed(one, first, misused, reference))
        for some in (first.misuse, seen)
    )
    confirmed, short = (*early, *seen), None
    if not confirmed:
        short = find_shortfall(one, first, reference.result, Patched("", steps, seconds))
        confirmed = () if short is None else (*_suspects(known, first, short), short.misuse())
    if not confirmed:
        return _cure_rate(one, first, reference, steps, seconds)
    cures: dict[str, tuple[Cure, Misused]] = {}
    script = one.script
    casts, last = reference.result.casts, dict[str, tuple[Cure, Misused]]()
    with contextlib.chdir(one.base):
        for misused in confirmed:
            of_casts = casts if misused.kind in _ROUNDED else ()
            kept = (keep_in_fp32(place, casts) for place in (misused.place, *of_casts) if of_casts)
            late = [cure for way in kept for cure in untried(misused.sentence, way, misused.code)]
            known_cast = late[:1] if misused.place in of_casts else []
            if misused.kind == "worse than FP32":
                late = list(keep_each(casts, script, misused.sentence, misused.code))
            for cure in (*known_cast, *cures_of(misused, first), *_fp32_lines(one, misused), *late):
                cures.setdefault(cure.patch, (cure, misused))
            if misused.kind in _OF_NUMBERS and reference.judge(None) == "fine":
                text = f"{misused.sentence} "
                for cure in list_fallbacks(casts, first.made, script, text, misused.code):
                    last.setdefault(cure.patch, (cure, misused))

    def run(patch: str) -> PassResult | None:
        result = _run_patched(one, patch, steps, seconds)
        if not seen or result is None or result.error or result.event is not None:
            return result
        doing = "auditing the patched script"
        again = one.run("inspect", doing, trial=Patched(patch, steps, max(seconds, _AUDIT_SECONDS)))
        return with_audit(result, again, 0 if inspected is None else inspected.inspected)

    def judge(result: PassResult, cure: Cure) -> str:
        left = fault_left(result, (last | cures)[cure.patch][1], known)
        if not left and short is not None:
            left = short.left(ends_of(one, "patched"), ends_of(one, "fp32"))
        return left or _worse(one, reference, cure)

    precise, larger = ([cure for cure, _ in some.values()] for some in (cures, last))
    proven = prove(precise, run, judge, lambda: _compare(one, reference), larger)
    trials = (reference.trial(None), *proven.trials)
    if short is not None:  # what has no part in it is no finding
        blamed = None if proven.cure is None else (last | cures)[proven.cure.patch][1]
        confirmed = (short.misuse(),) if blamed is None else (blamed,)
    return confirmed, Proven(proven.cure, trials)


_SLOWER = (0.1, 0.02, 0.005)  # times the learning rate
_AS_AT_FIRST = 0.97  # of the first loss
_BETTER = 0.75  # of the loss


def _cure_rate(
    one: Investigation, first: PassResult, reference: Reference, steps: int, seconds: float
) -> tuple[tuple[Misused, ...], Proven]:
    """Return a learning rate that is too high in any precision, if a lower one lets the loss fall."""
    start, end = next(iter(one.losses("losses")), math.nan), _end(one.losses("losses"))
    script = one.script
    rate = first.made.rate
    if not script or not rate or not end > _AS_AT_FIRST * start > 0:
        return (), Proven()
    text = (
        f"The loss does not fall: it was {start:.4g} at first, and its median over the last quarter of the "
        f"run is {end:.4g}, in FP32 {_end(reference.losses):.4g}. The learning rate of {rate:g} is too high "
        "in any precision: with a lower one the loss falls. Lower it"
    )
    cures, lines = list[Cure](), list[Place]()
    with contextlib.chdir(one.base):
        for part in _SLOWER:
            patch, lines = settings.learning_rate.with_places((script, 0), rate, part)
            sentence = f"{text}: {describe_place(next(iter(lines), None))}."
            cures += untried(sentence, patch, "")

    def judge(result: PassResult, _cure: Cure) -> str:
        if result.error or result.event is not None or result.ended not in OVER:
            return result.error or "it did not finish"
        now = _end(one.losses("patched"))
        worse = worse_numbers(ends_of(one, "patched"), ends_of(one, "losses"))
        falls = now < _BETTER * end and not worse
        return "" if falls else f"it does not train better: the loss is {now:.4g}"

    proven = prove(cures, lambda patch: _run_patched(one, patch, steps, seconds), judge)
    if proven.cure is None:
        return (), Proven()
    fault = Misused(kind="too fast", sentence=proven.cure.sentence, place=next(iter(lines), None))
    return (fault,), Proven(proven.cure, (reference.trial(None), *proven.trials))


def _end(losses: Sequence[float]) -> float:
    """Return the median of the last quarter of some losses."""
    part = len(losses) // 4
    return median(losses[-part:]) if part >= _FEWEST else math.nan


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
    norms = _norms(Path(found.trials[0].gradients), misused.sizes)
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


def _norms(file: Path, sizes: tuple[int, ...]) -> list[float]:
    """Return the norm of each gradient that a trial has kept."""
    values = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float64)
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
