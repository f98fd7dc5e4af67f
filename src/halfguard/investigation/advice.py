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
    "A target of this batch is longer than its input, so no alignment exists and the CTC loss is "
    "Inf in any precision. Drop such samples, or pass zero_infinity=True to the CTC loss."
)


def advise(found: PassResult, event: Event, in_fp32: InFP32) -> str:
    """Return what to do where no trial has shown a cure; nothing of it was tested."""
    culprit = found.culprit
    if culprit is None:
        return ""
    if found.of_data and in_fp32 != "fine":
        return (
            f"{culprit.op} at {culprit.place} returned NaN or Inf before any parameter was used: "
            "the data contains a value for which the operation is undefined, such as log(0). "
            "Repair or drop such samples."
        )
    if culprit.kind == "input":
        hides = describe_place(found.made.hides)
        return (
            f"{culprit.name} contained NaN or Inf before it was used here. Check the data that it was "
            "computed from, and repair or drop such samples there."
            + (
                f" A finite loss is not enough: gradients still pass through {hides}."
                if hides
                else ""
            )
        )
    if culprit.kind in ("parameter", "buffer"):
        return (
            f"The {culprit.kind} {culprit.name} was not finite before this step. Look for the "
            "cause in an earlier step or in the checkpoint that was loaded."
        )
    if event.kind == "parameters" and culprit.phase == "backward" and event.scale > 1:
        return (
            "The optimizer applied gradients that had overflowed. Step it only with "
            "scaler.step(optimizer), and do not call optimizer.step() directly."
        )
    return _advise_on_operation(culprit, found, in_fp32)


def _advise_on_operation(culprit: Culprit, found: PassResult, in_fp32: InFP32) -> str:
    exact = found.exact
    if "ctc_loss" in culprit.op:
        return ADVICE_ON_CTC
    if culprit.op.startswith("nll_loss"):
        return "All labels of this batch are ignored. Skip the batch, or divide by max(count, 1)."
    if found.reason is not None and found.reason.few:
        return advise_on_few(culprit, found.reason.few)
    is_float16 = "float16" in (culprit.dtype, found.autocast)
    if math.isinf(exact) and in_fp32 == "fine":
        return (
            f"{culprit.op} has no finite result for these inputs, but the step is finite in FP32: "
            "the lower precision had already rounded an input to 0 or Inf. Compute the preceding "
            "operations in FP32"
            # bfloat16 has the range of FP32: a small epsilon is not 0 there.
            + (", and choose an epsilon that is not 0 in float16." if is_float16 else ".")
        )
    if math.isinf(exact):
        return (
            f"{culprit.op} has no finite result for these inputs in any precision. Guard its "
            "input: add an epsilon, clamp it, apply torch.where to the input, or avoid empty "
            "rows."
        )
    fits_fp32 = math.isfinite(exact) and culprit.dtype in HALF_NAMES and exact < FP32.largest
    if fits_fp32 and in_fp32 == "fails":
        return (
            f"The result, up to {exact:.3g}, overflows {culprit.dtype}, but FP32 alone does not "
            "fix the step, which then fails at a later operation. Fully masked rows and means "
            "over empty selections are NaN in any precision, so leave them out."
        )
    if fits_fp32:
        return (
            f"The result, up to {exact:.3g}, overflows {culprit.dtype}. Compute {culprit.op} in "
            "FP32 (.float(), with autocast disabled), or make its input smaller."
        )
    if math.isfinite(exact):
        return (
            f"The result, up to {exact:.3g}, overflows FP32 too: the run diverged before this "
            "step, or its inputs are far too large. Lower the learning rate, add warmup, or clip "
            "the gradients"
            + (f": {made}." if (made := describe_place(found.made.optimizer)) else ".")
        )
    return "Change the computation at its origin. The ranges above show which values overflow."


def advise_on_few(culprit: Culprit, few: Few) -> str:
    """Return what to do about a mean over nothing, or the deviation of one number."""
    if few == "one":
        return (
            f"{culprit.op} at {culprit.place} receives a single value, so it divides by 0 in any "
            "precision. Use correction=0 when the count is 1, or leave such samples out."
        )
    return (
        f"{culprit.op} at {culprit.place} receives an empty tensor: nothing was selected from "
        "this batch, and the mean of an empty tensor is NaN in any precision. Divide the sum by "
        "max(count, 1), or leave the term out."
    )


def advise_on_mask(mask: Culprit, culprit: Culprit) -> str:
    """Return what to do about a constant that is infinite in half only."""
    return (
        f"The constant that {mask.op} writes at {mask.place} is Inf in {mask.dtype or 'float16'}, "
        f"but finite in FP32, and {culprit.op} at {culprit.place} turns it into NaN. Write "
        "torch.finfo(x.dtype).min instead, and leave out fully masked rows."
    )


def advise_on_swallowed(found: AuditFinding, read: Place | None = None) -> str:
    """Return what to do about numbers that left the range of half; one that depends on them may be read."""
    did = (
        f"{found.op} overflowed {found.half.dtype}, and a later operation made the Inf finite"
        if found.fault == "overflow"
        else f"Results of {found.op} are too small for {found.half.dtype} and became 0"
    )
    wrong = f"values read at {read[0]}:{read[1]} are wrong" if read else "the gradients are wrong"
    return (
        f"{did}, so {wrong} although no NaN appears. Compute the line in FP32 "
        "(call .float() on its 16-bit inputs and disable autocast): "
        f"{describe_place((found.file, found.line))}"
    )


def advise_on_reference(step: InFP32, script: InFP32, made: Made, casts: tuple[Place, ...]) -> str:
    """Return what to do if the script in FP32 from its first line ends otherwise than the step in FP32."""
    if (step, script) == ("fails", "fine"):
        lines = "; ".join(map(describe_place, casts))
        return (
            "Running only this step in FP32 does not help because values had already been rounded "
            "to 16-bit precision. Run in FP32 from its first line, the script trains. Keep these "
            "values in FP32 where they are created" + (f": {lines}." if lines else ".")
        )
    if (step, script) == ("fine", "fails"):
        made_at = describe_place(made.optimizer)
        return (
            "The script also diverges when it runs entirely in FP32; in 16-bit precision it fails "
            "a few steps earlier. Lower the learning rate, add warmup, or clip the gradients"
            + (f": {made_at}." if made_at else ".")
            + (
                " If a learned value (a log-scale, a temperature) grows without a limit, bound it with tanh "
                "or clamp before it is used, and use the bounded value everywhere."
            )
        )
    return ""


def describe_place(place: Place | None) -> str:
    """Return a line as ``file:line: code``, or an empty string."""
    return "" if place is None else f"{place[0]}:{place[1]}: {linecache.getline(*place).strip()}"
