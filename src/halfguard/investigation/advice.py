"""Advise where no change could be tried: on bad data, or a division by zero in any precision."""

from __future__ import annotations

import linecache
import math

from halfguard.formats import FP32
from halfguard.investigation.passes import HALF_NAMES, Event, Few, Made, PassResult, Place
from halfguard.records.audit import AuditFinding
from halfguard.records.autopsy import Culprit
from halfguard.records.script_answer import InFP32

ADVICE_ON_CTC = (
    "A target of this batch is longer than its input, so there is no alignment, and the loss is infinite in "
    "any precision: drop such samples, or give CTC zero_infinity=True."
)


def advise(found: PassResult, event: Event, in_fp32: InFP32) -> str:
    """Return what to do where no trial has shown a cure; nothing of it was tested."""
    culprit = found.culprit
    if culprit is None:
        return ""
    if found.of_data and in_fp32 != "fine":
        return (
            f"{culprit.op} at {culprit.place} returned NaN or Inf before any parameter was used: "
            "the data has a value for which it is not defined, such as log(0). Repair or drop such samples."
        )
    if culprit.kind == "input":
        hides = describe_place(found.made.hides)
        return (
            f"{culprit.name} was not finite before it was used here: look at the data that it was made of, "
            "and repair or drop such samples there."
            + (f" A finite loss does not help: gradients pass through {hides}." if hides else "")
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
    return _advise_on_operation(culprit, found, in_fp32)


def _advise_on_operation(culprit: Culprit, found: PassResult, in_fp32: InFP32) -> str:
    exact = found.exact
    if "ctc_loss" in culprit.op:
        return ADVICE_ON_CTC
    if culprit.op.startswith("nll_loss"):
        return (
            "No label is left in this batch (all are ignored): skip it, or divide by max(count, 1)."
        )
    if found.few:
        return advise_on_few(culprit, found.few)
    is_float16 = "float16" in (culprit.dtype, found.autocast)
    if math.isinf(exact) and in_fp32 == "fine":
        return (
            f"{culprit.op} has no finite value at these inputs, but the step is fine in FP32: a lower "
            "precision made them 0 or infinite before. Compute the operations before it in FP32"
            # bfloat16 has the range of FP32: a small epsilon is not 0 there.
            + (", and choose an epsilon that is not 0 in half." if is_float16 else ".")
        )
    if math.isinf(exact):
        return (
            f"{culprit.op} has no finite value at these inputs in any precision: guard its input (an "
            "epsilon, clamp, torch.where on the input, no empty rows)."
        )
    fits_fp32 = math.isfinite(exact) and culprit.dtype in HALF_NAMES and exact < FP32.largest
    if fits_fp32 and in_fp32 == "fails":
        return (
            f"The result, up to {exact:.3g}, does not fit {culprit.dtype}, but FP32 alone is not a fix: the "
            "step fails there as well, at a later operation. A row that is masked as a whole, or a sum over "
            "nothing, is bad in any precision: leave it out."
        )
    if fits_fp32:
        return (
            f"The result, up to {exact:.3g}, does not fit {culprit.dtype}: compute {culprit.op} in FP32 "
            "(.float(), with autocast off), or make its input smaller."
        )
    if math.isfinite(exact):
        return (
            f"The result, up to {exact:.3g}, does not fit FP32 either: the run diverged before this step, "
            "or its inputs are far too large. Lower the learning rate, warm it up, or clip gradients"
            + (f": {made}." if (made := describe_place(found.made.optimizer)) else ".")
        )
    return "Change the computation where it began. The ranges above show what does not fit."


def advise_on_few(culprit: Culprit, few: Few) -> str:
    """Return what to do about a mean over nothing, or the deviation of one number."""
    if few == "one":
        return (
            f"{culprit.op} at {culprit.place} is given one number, and divides by a count of 0, in any "
            "precision. Divide by the count where it is 1 (correction=0), or leave such samples out."
        )
    return (
        f"{culprit.op} at {culprit.place} is given no numbers: what was selected of this batch is empty, and "
        "a mean over nothing is NaN in any precision. Divide the sum by max(count, 1), or leave the term out."
    )


def advise_on_mask(mask: Culprit, culprit: Culprit) -> str:
    """Return what to do about a constant that is infinite in half only."""
    return (
        f"The constant that {mask.op} writes at {mask.place} is infinite in {mask.dtype or 'half'}, but not "
        f"in FP32, and {culprit.op} at {culprit.place} makes NaN of it. Write torch.finfo(x.dtype).min "
        "instead, and leave out rows that are masked as a whole."
    )


def advise_on_swallowed(found: AuditFinding) -> str:
    """Return what to do about numbers that left the range of half in a run without a bad number."""
    did = (
        f"{found.op} leaves the range of {found.half.dtype}, and its infinity became a finite number later"
        if found.fault == "overflow"
        else f"Numbers of {found.op} are too small for {found.half.dtype}, and became 0"
    )
    return (
        f"{did}, so that the step learns something wrong without a NaN. Compute the line in FP32 (.float() "
        f"on its half inputs, with autocast off): {describe_place((found.file, found.line))}"
    )


def advise_on_reference(step: InFP32, script: InFP32, made: Made, casts: tuple[Place, ...]) -> str:
    """Return what to do if the script in FP32 from its first line ends otherwise than the step in FP32."""
    if (step, script) == ("fails", "fine"):
        lines = "; ".join(map(describe_place, casts))
        return (
            "FP32 from this step on is too late: numbers were rounded to half before, and in FP32 from its "
            "first line the script trains. Keep them in FP32 where they are made"
            + (f": {lines}." if lines else ".")
        )
    if (step, script) == ("fine", "fails"):
        made_at = describe_place(made.optimizer)
        return (
            "The run diverges in FP32 as well, from its first line: 16 bits show it a few steps earlier. "
            "Lower the learning rate, warm it up, or clip gradients"
            + (f": {made_at}." if made_at else ".")
            + " If a learned number grows without a limit (a log-scale, a temperature), give it one, by tanh "
            "or clamp, before it is used, and use the limited number wherever it is."
        )
    return ""


def describe_place(place: Place | None) -> str:
    """Return a line as ``file:line: code``, or an empty string."""
    return "" if place is None else f"{place[0]}:{place[1]}: {linecache.getline(*place).strip()}"
