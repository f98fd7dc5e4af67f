"""From the results of the passes to the answer, and the code of the failure that it is about."""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from halfguard.formats import FP16
from halfguard.investigation.advice import advise, advise_on_mask, describe_place
from halfguard.investigation.misuse import Crash
from halfguard.investigation.passes import (
    HALF_NAMES,
    Event,
    Headroom,
    Made,
    Misused,
    PassResult,
    ScalerFacts,
    Target,
)
from halfguard.investigation.proof import SOON_SECONDS, Proven
from halfguard.records.autopsy import Culprit, Cure
from halfguard.records.script_answer import InFP32, ScriptAnswer
from halfguard.step.installed import is_installed

_BEFORE = (
    "raw step",
    "second step",
    "half moments",
    "unscaled early",
)  # what was wrong before a number was bad
_OF_ZEROS = ("HG207", "HG609")  # causes of gradients that are all 0
_NOTHING = Made()
_CULPRITS = {"input": "HG612", "parameter": "HG613", "buffer": "HG613"}


def name_failure(
    answer: ScriptAnswer, misused: Sequence[Misused], reason: str = "", made: Made = _NOTHING
) -> str:
    """Return the code: of the recommended fix, of the reason, or of what was seen; empty if all is well."""
    if answer.cure is not None and answer.cure.code:
        return answer.cure.code
    if answer.outcome == "non-finite value" and answer.culprit is not None:
        return reason or _code_of_culprit(answer.culprit, answer.in_fp32)
    known = [Crash(answer.error, None, made).code, *(one.code for one in misused)]
    if any(one.fault == "overflow" and one.use != "none" for one in answer.swallowed):
        known.append("HG609")
    return next(filter(None, known), "")


def _code_of_culprit(culprit: Culprit, in_fp32: InFP32) -> str:
    """Return the code of what was proven: half is not blamed for what is not finite in FP32."""
    if culprit.op.startswith("nll_loss") or "ctc_loss" in culprit.op:
        return "HG612"
    ran_in_fp32 = in_fp32 == "unknown" and culprit.dtype not in HALF_NAMES
    in_any = in_fp32 == "fails" or ran_in_fp32
    in_half = "HG611" if culprit.phase == "backward" else "HG601"
    return _CULPRITS.get(culprit.kind, "HG620" if in_any else in_half)


_LONGEST = 200  # characters of an error


_SHORT = {"float16": "FP16", "bfloat16": "BF16"}


def name_precision(first: PassResult, half: str = "") -> str:
    """Return what a script really ran in; ``half`` is the dtype of a 16-bit tensor that was seen."""
    weights = first.made.half_dtype
    if weights:
        return f"{_SHORT[weights]} weights"
    regions = dict.fromkeys(region.split()[-1] for region in first.regions)
    names = " and ".join(_SHORT.get(dtype, dtype) for dtype in regions)
    if names:
        return f"{names} autocast"
    return f"FP32 with some {_SHORT[half]} tensors" if half in _SHORT else "FP32"


def _common(target: Target, first: PassResult, proven: Proven, *, half: str = "") -> dict[str, Any]:
    return {
        "script": str(target),
        "precision": name_precision(first, half) if first.backward or first.event else "",
        "steps": first.steps,
        "backward": first.backward,
        "seconds": first.seconds,
        "error": first.error or ("the process died" if first.ended == "died" else ""),
        "cure": proven.cure,
        "loss_scale": _loss_scale(first.scaler),
    }


def answer_bad_number(
    target: Target,
    first: PassResult,
    event: Event,
    second: PassResult,
    proven: Proven,
    *,
    note: str,
    shared: tuple[str, ...],
) -> ScriptAnswer:
    """Return the answer for a script with a bad number."""
    in_fp32, cure = proven.in_fp32, proven.cure
    advice = "" if cure is not None else proven.advice or advise(second, event, in_fp32)
    if second.mask is not None and second.culprit is not None and in_fp32 == "fine":
        advice = "" if cure is not None else advise_on_mask(second.mask, second.culprit)
        second = second.model_copy(update={"culprit": second.mask, "exact": math.nan})
    raw = (one.sentence for one in first.misuse if one.kind in _BEFORE)
    advice = advice if cure is not None else next(raw, advice)
    half = "" if second.culprit is None else second.culprit.dtype
    if first.rate is not None and cure is None:
        advice = "Keep the learning rate finite: check the divisions and counts in its schedule."
    return ScriptAnswer(
        **_common(target, first, proven, half=half),
        outcome="non-finite value",
        step=event.step,
        bad_backward=event.backward,
        event=event.how,
        loss=event.loss,
        scale=event.scale,
        culprit=_named_culprit(second),
        cause=_cause(second),
        exact=_exact(second, in_fp32),
        reason=_reason(first, second),
        repeated=note or _repeated(second, event),
        in_fp32=in_fp32,
        trials=(*(result.trial for result in second.trials), *proven.trials),
        advice=advice,
        notes=(
            *_notes(first, shared),
            *(one for one in _misuse(first.misuse, cure) if one != advice),
        ),
    )


def _named_culprit(second: PassResult) -> Culprit | None:
    """Return the culprit; of an optimizer's step that a framework calls, the line that made the optimizer."""
    culprit, made = second.culprit, second.made.optimizer
    if culprit is None or not culprit.optimizer or made is None:
        return culprit
    named = replace(culprit, optimizer=f"{culprit.optimizer}, created at {made[0]}:{made[1]}")
    if ".step(" in culprit.code and not is_installed(culprit.file):
        return named
    return replace(named, file=made[0], line=made[1], code=linecache.getline(*made).strip())


def _reason(first: PassResult, second: PassResult) -> str:
    """Return why a number is bad, as a clause: what the script computed beside torch comes first."""
    of_data = second.culprit is not None and second.culprit.kind == "input"
    lines = "; ".join(f"{what} at {describe_place(place)}" for place, what in first.numpy[:2])
    by_numpy = f"NumPy reported {lines}" if lines else ""
    if first.rate is not None:
        return "; ".join(filter(None, (first.rate.text, by_numpy)))
    found = "" if second.reason is None else second.reason.text
    return by_numpy or found if of_data else found


def answer_crash(
    target: Target, first: PassResult, crash: Crash, proven: Proven, shared: tuple[str, ...]
) -> ScriptAnswer:
    """Return the answer for a script that crashed without a bad number."""
    return ScriptAnswer(
        **_common(target, first, proven),
        outcome="crashed",
        trials=proven.trials,
        advice="" if proven.cure is not None else crash.advice,
        notes=(*_notes(first, shared), *_misuse(first.misuse, proven.cure)),
    )


def _misuse(misused: Sequence[Misused], cure: Cure | None) -> Iterator[str]:
    """Yield what a script misuses besides what its cure mends."""
    told = "" if cure is None else cure.sentence
    mended = cure is not None and cure.code in _OF_ZEROS
    for one in misused:
        if one.sentence not in told and not (mended and one.kind == "zero gradients"):
            yield one.sentence


def _cause(second: PassResult) -> str:
    """Return the line of the user that made what failed inside of a library."""
    made, culprit = second.made, second.culprit
    if culprit is None or not is_installed(culprit.file):
        return ""
    caller = next(iter(made.half_callers), None)
    return describe_place(made.half_weights or caller or made.half_module or made.optimizer)


def _repeated(second: PassResult, event: Event) -> str:
    if second.culprit is None and second.ended == "interrupted":
        return "The second run was interrupted, so the operation is unknown."
    if second.culprit is None:
        return "The second run did not fail in the same way, so the operation is unknown."
    if not event.backward:
        return ""
    if second.differs_at is None:
        return "The losses of the second run were bit-identical up to this step."
    return (
        f"The losses of the second run differ from backward pass {second.differs_at} on, but it "
        "failed at the same step."
    )


def _exact(second: PassResult, in_fp32: InFP32) -> str:
    exact, culprit = second.exact, second.culprit
    if culprit is None or math.isnan(exact):
        return ""
    if math.isinf(exact):
        text = "On the same inputs, the result is not finite in FP64 either"
        in_half = culprit.dtype in HALF_NAMES and in_fp32 == "fine"
        return f"{text}: these inputs were computed in 16 bits." if in_half else f"{text}."
    return f"On the same inputs, the FP64 result is finite, with magnitudes up to {exact:.6g}."


def answer_good_run(
    target: Target,
    first: PassResult,
    inspected: PassResult | None,
    misused: Sequence[Misused],
    *,
    proven: Proven,
    log: str,
    shared: tuple[str, ...],
) -> ScriptAnswer:
    """Return the answer for a script without a bad number."""
    cure = proven.cure
    outcome = "nothing bad" if first.backward else "no training"
    if first.ended == "interrupted":
        outcome = "interrupted"
    elif first.ended == "died" or first.error:
        outcome = "crashed"
    elif misused:
        outcome = "trains wrongly"
    headroom = None if inspected is None else inspected.headroom
    swallowed = () if inspected is None or not misused else inspected.swallowed
    half = ""
    if headroom is not None:
        half = "float16" if headroom.limit <= FP16.largest else "bfloat16"
    return ScriptAnswer(
        **_common(target, first, proven, half=half),
        outcome=outcome,  # type: ignore[arg-type]
        log=log,
        loss=first.loss,
        trials=proven.trials,
        advice=" ".join(_misuse(misused, cure)),
        headroom=_headroom(headroom, inspected),
        swallowed=swallowed,
        notes=(*_notes(first, shared), *_audit_notes(first, inspected)),
        next=_next(target, first),
    )


def _audit_notes(first: PassResult, inspected: PassResult | None) -> Iterator[str]:
    """Yield what was left out: an audit that failed (not by the script itself), and tests of long runs."""
    if inspected is None or inspected.ended == "interrupted" or first.error:
        return
    error = inspected.error or ("its process died" if inspected.ended == "died" else "")
    if error:
        yield (
            f"The audit of a few steps failed ({error[:_LONGEST]}), so swallowed overflows, lost "
            "updates and vanishing gradients may have been missed."
        )
    if first.effort > SOON_SECONDS:
        yield (
            f"The script ran for {first.seconds:.0f} s. halfguard compares it with FP32 only if "
            f"it ends within {SOON_SECONDS:.0f} s."
        )
        unsure = (one.sentence for one in (*first.misuse, *inspected.misuse) if one.unsure)
        yield from (f"Not tested: {sentence}" for sentence in dict.fromkeys(unsure))


def _headroom(found: Headroom | None, inspected: PassResult | None) -> str:
    if inspected is None or not inspected.inspected:
        return ""
    steps = f"{inspected.inspected} backward passes, spread over the run,"
    if found is None:
        return (
            f"No tensor was 16-bit in {steps.rstrip(',')}, so the script trains in FP32 on this "
            "machine."
        )
    place = f"{found.file}:{found.line}" if found.file else "an unknown place"
    if found.limit > FP16.largest:
        return (
            f"The script ran in bfloat16, which has the range of FP32. In {steps} the largest "
            f"magnitude was {found.largest:.6g}, in the result of {found.op} at {place}."
        )
    bits = math.log2(found.limit / found.largest) if found.largest else math.inf
    return (
        f"In {steps} the largest 16-bit magnitude was {found.largest:.6g}, {bits:.1f} doublings "
        f"below the limit of {found.limit:g}, in the result of {found.op} at {place}."
    )


def _loss_scale(scaler: ScalerFacts) -> str:
    if not scaler.used:
        return ""
    one, many, what = (
        ("step", "steps", "skipped")
        if scaler.each_steps
        else ("backward pass", "backward passes", "overflowed")
    )
    skipped = f"{scaler.skips} {one if scaler.skips == 1 else many} {what}"
    if scaler.count > 1:  # each has a scale of its own
        return (
            f"{scaler.count} scalers; the initial loss scale of the first is {scaler.first:g}, the final one "
            f"of the last is {scaler.last:g}; {skipped}"
        )
    return f"initial loss scale {scaler.first:g}, final loss scale {scaler.last:g}; {skipped}"


def _next(target: Target, first: PassResult) -> str:
    if first.autocast_off:
        return f"halfguard why --emulate {target}"
    if not first.backward:
        return "halfguard lint ."
    return (
        f"halfguard why {target}" if first.ended in ("steps", "interrupted") else "halfguard lint ."
    )


def _notes(first: PassResult, shared: tuple[str, ...]) -> tuple[str, ...]:
    notes = [f"The script {effect}; this was not isolated." for effect in first.outside]
    notes += [
        f"{path} is too large to copy, so changes that the runs made there remain."
        for path in shared
    ]
    if first.effort > SOON_SECONDS and (first.event is not None or first.misuse):
        notes.append(
            f"The script ran for {first.seconds:.0f} s. Patches are tested and offered only for "
            f"scripts that fail or end within {SOON_SECONDS:.0f} s. Shorten the run, or try "
            "halfguard lint --fix."
        )
    if first.spawns:
        notes.append(
            "The script starts its ranks itself (torch.multiprocessing.spawn), so halfguard "
            "observed only the parent process. Start the ranks with torchrun: torchrun "
            "--nproc-per-node=2 -m halfguard.why SCRIPT."
        )
    if first.autocast_off:
        device = first.autocast_off
        notes.append(
            f"autocast({device!r}) was disabled by torch because this machine has no such device, "
            "so the script ran in FP32. To run it under CUDA's autocast rules on this CPU, use "
            "--emulate."
        )
    return tuple(notes)
