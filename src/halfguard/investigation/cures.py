"""From trials to a cure: the smallest change that worked in a trial and keeps the mathematics.

A pure function of what was found. The order is that of ``replay``: a logarithm computed from logits, an
operation that computes the same in float32, a module in FP32, an operation that limits its result, a lower
loss scale, BF16, FP32 everywhere. Where no trial can show it (bad data, a division by zero in any precision),
there is advice, which is called untested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from halfguard.formats import FP16, FP32
from halfguard.investigation.passes import Event, PassResult, TrialResult
from halfguard.records.autopsy import Cure
from halfguard.records.culprit import Culprit
from halfguard.records.plan import Island, PrecisionPlan
from halfguard.records.script_answer import InFP32
from halfguard.replaying.rewrite import make_patch

_HALF = ("float16", "bfloat16")
_FAR = 0.2  # relative error of gradients


def judge_fp32(trials: tuple[TrialResult, ...]) -> InFP32:
    """Return whether the step was good in FP32."""
    full = _trial(trials, "fp32")
    if full is None:
        return "unknown"
    return "fine" if full.trial.good else "fails"


def choose_cure(found: PassResult, event: Event) -> Cure | None:
    """Return the best cure that a trial has shown, or None."""
    if found.culprit is None or found.culprit.kind != "op":
        return None
    return next(_cures(found, found.culprit, event), None)


def _cures(found: PassResult, culprit: Culprit, event: Event) -> Iterator[Cure]:
    good = {result.plan.kind: result for result in found.trials if result.trial.good}
    composition = good.get("composition")
    if composition is not None and composition.trial.grad_norm:
        yield _rewritten(composition)
    if _is_scale_alone(found, culprit, event) and "scale" in good:
        yield _scale(good["scale"], event, culprit)
    stable = good.get("stable")
    learns = stable is not None and bool(stable.trial.grad_norm)
    if stable is not None and learns and not stable.limits:
        yield _operation(stable, culprit)
    if _is_optimizer(culprit, event) and "fp32" in good:
        yield _fp32_weights(good["fp32"], culprit, found.optimizer)
    line = good.get("statement")
    if line is not None and (line.patch or "island" not in good):
        yield _line(line, f"Compute the statement at {culprit.place} in FP32")
    if "island" in good:
        yield _island(good["island"], culprit, found.autocast)
    # A limit keeps numbers finite, not right: far from FP32 another format is better.
    if stable is not None and learns and not (stable.trial.error_as_written or 0) > _FAR:
        yield _operation(stable, culprit)
    if "function" in good:
        yield _line(good["function"], f"Compute the function around {culprit.place} in FP32")
    if "scale" in good:
        yield _scale(good["scale"], event, culprit)
    if "bf16" in good:
        yield _precision(
            good["bf16"],
            "bf16-mixed",
            "BF16 has the range of FP32, but 8 significant bits where FP16 has 11",
        )
    if "fp32" in good:
        yield _precision(good["fp32"], "fp32", "nothing smaller helped")
    if stable is not None and learns:
        yield _operation(stable, culprit)


def _is_scale_alone(found: PassResult, culprit: Culprit, event: Event) -> bool:
    """Return whether the gradients fit in half before they were scaled."""
    if culprit.phase != "backward" or event.scale <= 1 or not math.isfinite(found.exact):
        return False
    return found.exact / event.scale < FP16.largest


def _is_optimizer(culprit: Culprit, event: Event) -> bool:
    """Return whether the optimizer's own arithmetic failed, in half."""
    outside = culprit.module is None and culprit.phase == "forward"
    return event.kind == "parameters" and outside and culprit.dtype in _HALF


def _trial(trials: tuple[TrialResult, ...], kind: str) -> TrialResult | None:
    return next((result for result in trials if result.plan.kind == kind), None)


def _rewritten(result: TrialResult) -> Cure:
    return Cure(
        what="operation",
        sentence=f"{result.rewrite} A part of it leaves the range before the whole is computed.",
        trial=result.trial.name,
        patch=result.patch,
    )


def _operation(result: TrialResult, culprit: Culprit) -> Cure:
    names = ", ".join(f"halfguard.ops.{name}" for name in result.stable)
    limit = " It limits its result to the range of the dtype." if result.limits else ""
    return Cure(
        what="operation",
        sentence=f"Use {names} at {culprit.place}.{limit}",
        trial=result.trial.name,
        patch=make_patch({(culprit.file, culprit.line): set(result.stable)}),
    )


def _fp32_weights(result: TrialResult, culprit: Culprit, optimizer: str) -> Cure:
    made = f" The optimizer was made at {optimizer}" if optimizer else ""
    return Cure(
        what="precision",
        sentence="Keep the weights in FP32, and run the model under torch.autocast instead of .half(): the "
        f"optimizer's own arithmetic ({culprit.op}) does not fit {culprit.dtype}, where a small eps is 0."
        f"{made}",
        trial=result.trial.name,
    )


def _line(result: TrialResult, what: str) -> Cure:
    return Cure(
        what="operation",
        sentence=f"{what}: .float() on its half inputs, and torch.autocast(..., enabled=False) around it.",
        trial=result.trial.name,
        patch=result.patch,
    )


def _island(result: TrialResult, culprit: Culprit, autocast: str) -> Cure:
    reason = f"{culprit.op} at {culprit.place} leaves the range of {culprit.dtype or 'half'}"
    precision = "bf16-mixed" if autocast == "bfloat16" else "fp16-mixed"
    plan = PrecisionPlan(
        precision=precision, islands=(Island(module=result.plan.module, reason=reason),)
    )
    return Cure(
        what="island",
        sentence=f"Keep {result.plan.module!r} in FP32, by halfguard.fp32_island or by this plan.",
        trial=result.trial.name,
        patch=plan.to_yaml().rstrip("\n"),
    )


def _scale(result: TrialResult, event: Event, culprit: Culprit) -> Cure:
    scale = result.plan.scale or 1.0
    return Cure(
        what="scale",
        sentence=f"The gradients of {culprit.op} fit at a loss scale of {scale:g}, not at {event.scale:g}: "
        "begin there, and let the scale fall further if it must.",
        trial=result.trial.name,
        patch=f"scale:\n  init: {scale!r}",
    )


def _precision(result: TrialResult, name: str, why: str) -> Cure:
    return Cure(
        what="precision",
        sentence=f"Train in {name}: {why}.",
        trial=result.trial.name,
        patch=f"precision: {name}",
    )


def advise(found: PassResult, event: Event, in_fp32: InFP32) -> str:
    """Return what to do where no trial has shown a cure; nothing of it was tested."""
    culprit = found.culprit
    if culprit is None:
        return ""
    if culprit.kind == "input":
        return (
            f"{culprit.name} was not finite before it was used here: look at the data that it was made of, "
            "and repair or drop such samples there."
        )
    if culprit.kind in ("parameter", "buffer"):
        return (
            f"The {culprit.kind} {culprit.name} was not finite before this step: an earlier step, or a "
            "checkpoint that was loaded, has to be repaired."
        )
    if event.kind == "parameters" and culprit.phase == "backward" and event.scale > 1:
        return (
            "The optimizer applied gradients that had overflowed: only scaler.step(optimizer) may step it, "
            "never optimizer.step() as well."
        )
    return _advise_on_operation(culprit, found.exact, in_fp32)


def _advise_on_operation(culprit: Culprit, exact: float, in_fp32: InFP32) -> str:
    if culprit.op.startswith("nll_loss"):
        return (
            "No label is left in this batch (all are ignored): skip it, or divide by max(count, 1)."
        )
    if math.isinf(exact) and in_fp32 == "fine":
        return (
            f"{culprit.op} has no finite value at these inputs, but the step is fine in FP32: a lower "
            "precision made them 0 or infinite before. Compute the operations before it in FP32, and choose "
            "an epsilon that is not 0 in half."
        )
    if math.isinf(exact):
        return (
            f"{culprit.op} has no finite value at these inputs in any precision: guard its input (an "
            "epsilon, clamp, torch.where on the input, no empty rows)."
        )
    if math.isfinite(exact) and culprit.dtype in _HALF and exact < FP32.largest:
        return (
            f"The result, up to {exact:.3g}, does not fit {culprit.dtype}: compute {culprit.op} in FP32 "
            "(.float(), with autocast off), or make its input smaller."
        )
    if math.isfinite(exact):
        return (
            f"The result, up to {exact:.3g}, does not fit FP32 either: the run diverged before this step, "
            "or its inputs are far too large. Lower the learning rate, warm it up, or clip gradients."
        )
    return "Change the computation where it began. The ranges above show what does not fit."


def advise_on_mask(mask: Culprit, culprit: Culprit) -> str:
    """Return what to do about a constant that is infinite in half only."""
    return (
        f"The constant that {mask.op} writes at {mask.place} is infinite in {mask.dtype or 'half'}, but not "
        f"in FP32, and {culprit.op} at {culprit.place} makes NaN of it. Write torch.finfo(x.dtype).min "
        "instead, and leave out rows that are masked as a whole."
    )


def advise_on_raw_step(place: str) -> str:
    """Return what to do about an optimizer that was stepped without the scaler."""
    return (
        "The optimizer was stepped on gradients that were still multiplied by the loss scale, or that the "
        f"scaler had rejected, at {place}. Step it by scaler.step(optimizer) alone."
    )
