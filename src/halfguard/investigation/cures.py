"""From trials to a cure: the smallest change that worked in a trial and keeps the mathematics.

The order is that of ``replay``: a logarithm computed from logits, an operation that computes the same in
float32, a module in FP32, an operation that limits its result, a lower loss scale, BF16, FP32 everywhere. A
cure whose ``trial`` is empty was not tried on the step; it is worth nothing until the patched script has run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from halfguard.formats import FP16
from halfguard.investigation.advice import (
    ADVICE_ON_CTC,
    advise_on_few,
    advise_on_mask,
    describe_place,
)
from halfguard.investigation.passes import (
    HALF_NAMES,
    Event,
    Made,
    PassResult,
    Place,
    TrialKind,
    TrialResult,
)
from halfguard.records.autopsy import FAR, Culprit, Cure
from halfguard.records.plan import Island, PrecisionPlan
from halfguard.records.script_answer import InFP32
from halfguard.repairs import masks, scaling, settings, steps
from halfguard.repairs.casts import leave_out_cast
from halfguard.repairs.fp32_weights import fp32_weights, island
from halfguard.repairs.stable_operation import make_patch

_NOT_UPDATED = 8  # scaled backward passes; more than most loops accumulate
_COMPOSED = {"log(sigmoid": "HG104", "log(1 - sigmoid": "HG104", "log(softmax": "HG105"}
_CTC = ("CTCLoss", "ctc_loss")
_BF16_RANGE = "BF16 has the range of FP32, but only 8 significant bits instead of FP16's 11"


def judge_fp32(trials: tuple[TrialResult, ...]) -> InFP32:
    """Return whether the step was good in FP32."""
    full = _trial(trials, "fp32")
    if full is None:
        return "unknown"
    return "fine" if full.trial.good else "fails"


def list_cures(found: PassResult, event: Event, script: str = "") -> list[Cure]:
    """Return all cures, the best first; those without a trial only if their patch is certain.

    Changes whose gradients are far from those of FP32 are left out: they keep numbers finite, not right.
    Where data is bad, no operation is changed.
    """
    culprit = found.culprit
    if culprit is None:
        return []
    if found.of_data and judge_fp32(found.trials) != "fine":
        culprit = replace(culprit, kind="input")
    raw = list(_anomaly(found, event, script))
    if culprit.kind != "op":
        return [*raw, *_skipped(found, event)]
    before = [
        *raw,
        *_micro_batches(culprit),
        *_mask(found, culprit),
        *_added_masks(culprit),
        *_cast(culprit, found.exact),
        *_misuse(found, culprit, event),
    ]
    before += _zero_eps(found, culprit, event)
    after = [*_last_resorts(found, culprit), *_skipped(found, event)]
    far = {one.trial.name for one in found.trials if (one.trial.error_as_written or 0) > FAR}
    tried = [cure for cure in _cures(found, culprit, event, script) if cure.trial not in far]
    return [*before, *tried, *after]


def _anomaly(found: PassResult, event: Event, script: str) -> Iterator[Cure]:
    """Yield a run without detect_anomaly, which raises at an overflow that a scaler would have skipped."""
    lower = _trial(found.trials, "scale")
    if not event.how.startswith("detect_anomaly") or lower is None or not lower.trial.good:
        return
    patch, places = settings.anomaly_off.with_places((script, 0) if script else None)
    yield from untried(
        "detect_anomaly raises on overflows that the scaler would skip while it calibrates. "
        f"Disable it: {describe_place(next(reversed(places), None))}.",
        patch,
        "HG307",
    )


def _micro_batches(culprit: Culprit) -> Iterator[Cure]:
    """Yield a mean over micro-batches, if the sum of their gradients does not fit half."""
    if "AccumulateGrad" in culprit.op and culprit.dtype in HALF_NAMES:
        yield from untried(
            f"The sum of the gradients of all micro-batches overflows {culprit.dtype} at "
            f"{culprit.place}. Divide each loss by the number of micro-batches.",
            scaling.loss_per_micro_batch((culprit.file, culprit.line)),
            "HG611",
        )


def _skipped(found: PassResult, event: Event) -> Iterator[Cure]:
    """Yield a loop that leaves out batches whose loss it makes finite by itself until now."""
    hides, culprit = found.made.hides, found.culprit
    if hides is None and (found.of_data or (culprit is not None and culprit.kind == "input")):
        hides = event.place  # the backward pass of a loss that bad data has spoiled
    if judge_fp32(found.trials) != "fine" and event.kind in ("loss", "gradients", "looked"):
        is_known = culprit is not None and culprit.file
        source = f" The NaN or Inf comes from {culprit.place}." if culprit and is_known else ""
        yield from untried(
            "As a stopgap, skip batches whose loss is not finite before their backward pass: "
            f"{describe_place(hides)}.{source} Repair or drop such samples there.",
            masks.skip_bad_batch(hides),
            "HG308" if found.made.hides else "HG612",
        )


def keep_in_fp32(place: Place | None, casts: tuple[Place, ...]) -> str:
    """Leave out the cast of a line, and the same one on the other lines of its file that cast to half."""
    lines = (line for file, line in casts if place is not None and file == place[0])
    return leave_out_cast(place, tuple(lines))


def keep_each(casts: tuple[Place, ...], script: str, told: str, code: str) -> Iterator[Cure]:
    """Yield each cast left out, and each of several regions of autocast, one at a time; then like casts."""
    cast = f"{told} It ends as in FP32 if these values stay in FP32"
    region = f"{told} It ends as in FP32 if autocast is off here"
    for place in casts:
        yield from untried(f"{cast}: {describe_place(place)}.", keep_in_fp32(place, ()), code)
    regions = settings.regions_of(script) if script else ()
    for place in regions if len(regions) > 1 else ():
        patch = settings.autocast_region(place, "enabled", "False")
        yield from untried(f"{region}: {describe_place(place)}.", patch, code)
    for place in casts:
        yield from untried(f"{cast}: {describe_place(place)}.", keep_in_fp32(place, casts), code)


def list_fallbacks(
    casts: tuple[Place, ...], made: Made, script: str, told: str = "", code: str = ""
) -> Iterator[Cure]:
    """Yield what FP32 has shown for the script: all of its casts left out, BF16, and FP32 everywhere."""
    lines = "; ".join(map(describe_place, casts))
    yield from untried(f"{told}Keep these values in FP32: {lines}.", _no_half(casts), code)
    if made.autocast is not None:
        yield from untried(
            f"{told}Train in BF16: {_BF16_RANGE}.", _use_bfloat16(made.autocast, script), code
        )
    text = f"{told}Train in FP32: no smaller change has a patch that was verified."
    yield from untried(text, _no_half(casts, script), code)


def _no_half(casts: tuple[Place, ...], script: str = "") -> str:
    """Return a patch of all files that cast to half; with a script, autocast is off there."""
    files = {file: tuple(line for other, line in casts if other == file) for file, _ in casts}
    files |= {script: files.get(script, ())} if script else {}
    found = (settings.no_half((file, 0), at, regions=file == script) for file, at in files.items())
    return "\n".join(filter(None, found))


def untried(sentence: str, patch: str, code: str) -> Iterator[Cure]:
    """Yield a cure that no trial has shown, if its patch is certain: a run of the patched script has to."""
    if patch:
        yield Cure(what="operation", sentence=sentence, trial="", patch=patch, code=code)


def _mask(found: PassResult, culprit: Culprit) -> Iterator[Cure]:
    if found.mask is not None and judge_fp32(found.trials) == "fine":
        place = found.mask.file, found.mask.line
        patch = masks.smallest_number(place, found.mask.dtype or "float16")
        yield from untried(advise_on_mask(found.mask, culprit), patch, "HG101")


def _cast(culprit: Culprit, exact: float) -> Iterator[Cure]:
    """Yield numbers that stay in FP32, if a cast of the user is what they do not fit into."""
    if culprit.op == "to" and culprit.phase == "forward" and culprit.dtype in HALF_NAMES:
        yield from untried(
            f"Values up to {exact:.6g} do not fit into {culprit.dtype}, to which they are cast at "
            f"{culprit.place}. Keep them in FP32 there, and cast what is computed from them.",
            leave_out_cast((culprit.file, culprit.line)),
            "HG601",
        )


def _added_masks(culprit: Culprit) -> Iterator[Cure]:
    """Yield smaller masks, if two of them were added."""
    low = min((one.low for one in culprit.inputs if math.isfinite(one.low)), default=0.0)
    if culprit.op not in ("add", "sub") or culprit.dtype != "float16" or low > -FP16.largest / 4:
        return
    patch, lines = masks.smaller_masks.with_places((culprit.file, culprit.line))
    yield from untried(
        f"Two masks are added at {culprit.place}, and one of them holds the lowest FP16 value "
        "(-65504), so the sum overflows to -Inf. Divide the mask value by 4: "
        f"{'; '.join(map(describe_place, lines))}.",
        patch,
        "HG101",
    )


def _misuse(found: PassResult, culprit: Culprit, event: Event) -> Iterator[Cure]:
    if event.kind == "scale" and found.made.not_updated > _NOT_UPDATED:
        patch, places = steps.update_before_continue.with_places(found.made.scaling)
        yield from untried(
            "The loop continues without scaler.update() at "
            f"{describe_place(next(iter(places), None))}, so the loss scale never decreases. Call "
            "scaler.step() and scaler.update() in every iteration; the scaler skips non-finite "
            "steps itself.",
            patch,
            "HG302",
        )
    if event.scale > 1 and culprit.phase == "backward":
        yield from untried(
            f"The scaler is created repeatedly at {describe_place(found.made.scaler)}, and each new one "
            "loses the loss scale that the last one had calibrated. Create it once, before the loop.",
            steps.scaler_once(found.made.scaler),
            "HG210",
        )
    if "ctc_loss" in culprit.op:
        made = next((one.place for one in found.made.modules if not one.path), None)
        made = made or (culprit.file, culprit.line)
        patch = settings.add_keyword(made, "zero_infinity", "True", _CTC)
        yield from untried(ADVICE_ON_CTC, patch, "HG612")
    few = "" if found.reason is None else found.reason.few
    if few and culprit.file:
        repair = masks.deviation_of_one if few == "one" else masks.mean_of_nothing
        patch = repair((culprit.file, culprit.line))
        yield from untried(advise_on_few(culprit, few), patch, "HG620")
    if culprit.op.startswith("nll_loss") and culprit.file:
        text = (
            "All labels of this batch are ignored, so the mean divides by 0. Divide the sum by "
            "max(count, 1)."
        )
        yield from untried(text, masks.divide_by_labels((culprit.file, culprit.line)), "HG612")


def _last_resorts(found: PassResult, culprit: Culprit) -> Iterator[Cure]:
    """Yield weights in FP32 for a model that is half by itself, with the range of bfloat16."""
    if culprit.dtype != "float16" or judge_fp32(found.trials) != "fine":
        return
    made = found.made
    half = made.half_weights or made.half_module
    range_of = f"{culprit.op} at {culprit.place} overflows float16"
    where = f"They were converted to 16-bit at {describe_place(half)}."
    ways = {
        "bfloat16": "Keep the weights in FP32 and run the model under autocast in bfloat16",
        None: "Keep the weights and the inputs of the model in FP32",
    }
    for dtype, what in ways.items():
        patch = fp32_weights(half, dtype, made.half_callers)
        code = "HG611" if culprit.phase == "backward" else "HG601"
        yield from untried(f"{what}: {range_of}. {where}", patch, code)


def _cures(found: PassResult, culprit: Culprit, event: Event, script: str) -> Iterator[Cure]:
    good = {result.plan.kind: result for result in found.trials if result.trial.good}
    composition = good.get("composition")
    if composition is not None and composition.trial.grad_norm:
        yield _rewritten(composition)
    if _is_scale_alone(found, culprit, event) and "scale" in good:
        yield _scale(good["scale"], event, culprit, found)
    stable = good.get("stable")
    learns = stable is not None and bool(stable.trial.grad_norm)
    if stable is not None and learns and not stable.limits:
        yield _operation(stable, culprit)
    if _is_optimizer(culprit, event) and "fp32" in good:
        yield from _fp32_weights(good["fp32"], culprit, found)
    line = good.get("statement")
    if line is not None and (line.patch or "island" not in good):
        lines = [f"{file}:{number}" for file, number in line.plan.places] or [culprit.place]
        what = "statements" if len(lines) > 1 else "statement"
        yield _line(line, f"Compute the {what} at {', '.join(lines)} in FP32")
    if "island" in good:
        yield _island(good["island"], culprit, found)
        yield from _islands(good["island"], found)
    if stable is not None and learns and stable.limits:
        yield _operation(stable, culprit)
    yield from _lines(good, culprit)
    if "scale" in good:
        yield _scale(good["scale"], event, culprit, found)
    if "bf16" in good:
        patch = _use_bfloat16(found.made.autocast, script)
        yield _precision(good["bf16"], "bf16-mixed", _BF16_RANGE, patch)
    if "fp32" in good:
        patch = settings.autocast_region(found.made.autocast, "enabled", "False")
        yield _precision(good["fp32"], "fp32", _why_fp32(found.trials), patch)
    if stable is not None and not learns and "fp32" not in good:  # no gradient: an empty batch
        yield _operation(stable, culprit).model_copy(update={"trial": ""})


def _why_fp32(trials: tuple[TrialResult, ...]) -> str:
    """Return what is known of changes that are smaller than FP32 everywhere."""
    smaller = [one.trial for one in trials if one.plan.kind != "fp32"]
    errors = [one.error_as_written for one in smaller if one.good]
    if errors and all(error is not None and error > FAR for error in errors):
        least = min(error for error in errors if error is not None)
        return (
            "smaller changes keep the step finite, but their gradients are at least "
            f"{least:.0%} from those of FP32"
        )
    if errors:
        return "no smaller change has a patch that was verified"
    return f"no smaller change {'that was tried fixes the step' if smaller else 'was tried'}"


def _use_bfloat16(place: Place | None, script: str) -> str:
    """Let an FP16 region be one of BF16; or the setting of a framework, if the line has no region."""
    if settings.is_region(place):
        return settings.autocast_region(place, "dtype", "torch.bfloat16")
    return settings.framework_precision((script, 0) if script else None, "bf16")


def _eps(made: Made, eps: str) -> str:
    """Give an optimizer another eps, if it has one."""
    return (
        ""
        if made.eps is None
        else settings.optimizer_eps(made.optimizer, made.optimizer_class, eps)
    )


def _make_island(made: Made) -> str:
    """Put a module in FP32 where it is made, or one that holds it."""
    return next((patch for one in made.modules if (patch := island(one.place, one.path))), "")


def _lines(good: dict[TrialKind, TrialResult], culprit: Culprit) -> Iterator[Cure]:
    """Yield several statements in FP32: those that lead to the line, or all of its function."""
    if "slice" in good:
        what = f"Compute the statement at {culprit.place} and those that lead to it in FP32"
        yield _line(good["slice"], what)
    if "function" in good:
        yield _line(good["function"], f"Compute the function around {culprit.place} in FP32")


def _is_scale_alone(found: PassResult, culprit: Culprit, event: Event) -> bool:
    """Return whether the gradients fit in half before they were scaled."""
    if culprit.phase != "backward" or event.scale <= 1 or not math.isfinite(found.exact):
        return False
    return found.exact / event.scale < FP16.largest


def _is_optimizer(culprit: Culprit, event: Event) -> bool:
    """Return whether the optimizer's own arithmetic failed, in half."""
    outside = culprit.module is None and culprit.phase == "forward"
    return event.kind == "parameters" and outside and culprit.dtype in HALF_NAMES


def _trial(trials: tuple[TrialResult, ...], kind: str) -> TrialResult | None:
    return next((result for result in trials if result.plan.kind == kind), None)


def _rewritten(result: TrialResult) -> Cure:
    return Cure(
        what="operation",
        sentence=(
            f"{result.rewrite} With this form, the loss and the gradients of the step are finite."
        ),
        trial=result.trial.name,
        patch=result.patch,
        code=next((code for text, code in _COMPOSED.items() if text in result.rewrite), ""),
    )


def _operation(result: TrialResult, culprit: Culprit) -> Cure:
    names = ", ".join(f"halfguard.ops.{name}" for name in result.stable)
    limit = " It returns a finite value instead of NaN or Inf." if result.limits else ""
    return Cure(
        what="operation",
        sentence=f"Use {names} at {culprit.place}.{limit}",
        trial=result.trial.name,
        patch=make_patch({(culprit.file, culprit.line): set(result.stable)}),
    )


def _fp32_weights(result: TrialResult, culprit: Culprit, found: PassResult) -> Iterator[Cure]:
    """Yield weights in FP32, as peft does it or under autocast; then an eps that is not 0 in half."""
    made = found.made
    half = describe_place(made.half_weights)
    optimizer = describe_place(made.optimizer)
    divides = _rounds_to_zero(made.eps, culprit.dtype)
    why = "divides by 0 ({}), because its eps is 0 in" if divides else "({}) exceeds the range of"
    sentence = (
        "Keep the weights in FP32 and run the model under torch.autocast instead of calling "
        f".half(): the optimizer's own arithmetic {why.format(culprit.op)} {culprit.dtype}."
        + (f" The weights were converted to 16-bit at {half}." if half else "")
        + (f" The optimizer was created at {optimizer}." if optimizer else "")
    )
    trial = result.trial.name
    kept = fp32_weights(made.half_weights, culprit.dtype)
    adapters = settings.switch_on(made.half_weights, "autocast_adapter_dtype", anywhere=False)
    for patch in dict.fromkeys((adapters, kept) if adapters else (kept,)):
        yield Cure(what="precision", sentence=sentence, trial=trial, patch=patch, code="HG403")
    if divides:
        eps = "Give the optimizer an eps that is not 0 in float16, such as 1e-4. Better: "
        yield from untried(eps + sentence[0].lower() + sentence[1:], _eps(made, "1e-4"), "HG403")


def _rounds_to_zero(eps: float | None, dtype: str) -> bool:
    """Return whether an eps is 0 in a dtype: in float16, not in bfloat16, which has the range of FP32."""
    return eps is not None and dtype == "float16" and eps <= FP16.underflow_threshold


def _zero_eps(found: PassResult, culprit: Culprit, event: Event) -> Iterator[Cure]:
    """Yield an eps for an optimizer that divides by 0 without one."""
    if event.kind == "parameters" and culprit.module is None and found.made.eps == 0:
        yield from untried(
            f"The eps of {found.made.optimizer_class} is 0, so it divides 0 by 0 for parameters "
            "whose gradient was always 0. Set a positive eps: "
            f"{describe_place(found.made.optimizer)}.",
            _eps(found.made, "1e-8"),
            "HG403",
        )


def _line(result: TrialResult, what: str) -> Cure:
    return Cure(
        what="operation",
        sentence=(
            f"{what}: call .float() on its 16-bit inputs and wrap it in torch.autocast(..., "
            "enabled=False)."
        ),
        trial=result.trial.name,
        patch=result.patch,
    )


def _island(result: TrialResult, culprit: Culprit, found: PassResult) -> Cure:
    reason = f"{culprit.op} at {culprit.place} overflows {culprit.dtype or 'the 16-bit format'}"
    patch, made = _make_island(found.made), found.made.modules
    precision = "bf16-mixed" if found.autocast == "bfloat16" else "fp16-mixed"
    plan = PrecisionPlan(
        precision=precision, islands=(Island(module=result.plan.module, reason=reason),)
    )
    return Cure(
        what="island",
        sentence=f"Keep {result.plan.module!r} in FP32 with halfguard.fp32_island"
        + ("." if patch else " or with this plan.")
        + (f" It is created at {describe_place(made[0].place)}." if made else ""),
        trial=result.trial.name,
        patch=patch or plan.to_yaml().rstrip("\n"),
    )


def _islands(result: TrialResult, found: PassResult) -> Iterator[Cure]:
    """Yield an island for the same place of every layer: a model repeats a block, and its fault with it."""
    path = _widened(result.plan.module)
    widened = ((one.place, _widened(one.path)) for one in found.made.modules)
    ways = (island(place, inner) for place, inner in widened if "*" in inner)
    patch = next(filter(None, ways), "") if "*" in path else ""
    text = f"Keep {path!r} in FP32 with halfguard.fp32_island: other layers fail in later steps."
    yield from untried(text, patch, "HG601")


def _widened(path: str) -> str:
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path, count=1)


def _scale(result: TrialResult, event: Event, culprit: Culprit, found: PassResult) -> Cure:
    scale = result.plan.scale or 1.0
    return Cure(
        what="scale",
        sentence=(
            f"The gradients of {culprit.op} overflow at a loss scale of {event.scale:g}, but not "
            f"at {scale:g}. Start at {scale:g}, and let the scaler lower the scale further if "
            "necessary."
        ),
        trial=result.trial.name,
        patch=settings.initial_scale(found.made.scaler, scale) or f"scale:\n  init: {scale!r}",
    )


def _precision(result: TrialResult, name: str, why: str, patch: str) -> Cure:
    return Cure(
        what="precision",
        sentence=f"Train in {name}: {why}.",
        trial=result.trial.name,
        patch=patch or f"precision: {name}",
    )
