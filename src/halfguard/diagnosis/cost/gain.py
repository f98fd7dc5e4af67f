"""Why 16 bits are not faster, or not smaller: a pure judgement of what was measured.

Mixed precision makes two things cheaper: matrix products, where the machine has fast ones in half, and
activations that wait for the backward pass. Whatever else a step consists of stays as it was. So a gain that
is not there has one of few reasons, and each of them can be read off the measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halfguard.diagnosis.cost.reasons import Reason, slow_because
from halfguard.records.cost import Cost, MissedShape, PrecisionCost, TimeRatio
from halfguard.records.finding import Finding, Severity
from halfguard.records.sizes import size_text

WORTH = 0.10  # less than a tenth gained is not worth the risk of half precision
NAMED = 5


def gain_findings(cost: Cost, severity: Severity = "warning") -> tuple[Finding, ...]:
    """What keeps each 16-bit precision from being worth it, and the shapes that slow all of them."""
    base = cost.baseline
    if base is None:
        return ()
    found = [
        finding
        for other in cost.costs
        if other is not base and not other.failure
        for finding in (*_time(cost, base, other), *_memory(base, other))
    ]
    judged = (finding.model_copy(update={"severity": severity}) for finding in found)
    return (*judged, *_shapes(cost))


def _time(cost: Cost, base: PrecisionCost, other: PrecisionCost) -> Iterator[Finding]:
    if other.ratio is None or other.ratio.median <= 1 / (1 + WORTH):
        return
    reasons = list(slow_because(cost, base, other))
    yield Finding(
        code="HD201",
        subject=other.precision,
        message=f"{other.precision} {_speed(other.ratio, base.precision)} on {cost.device}.",
        why=" ".join(reason.why for reason in reasons)
        or "Half makes matrix products faster. In this step they are a small part; the rest runs as before.",
        cure=reasons[0].cure
        if reasons
        else "Train in FP32 here, or give the matrix products more to do: a larger batch, wider layers.",
    )


def _speed(ratio: TimeRatio, base: str) -> str:
    between = f"quartiles {ratio.low:.2f} to {ratio.high:.2f}"
    if ratio.low <= 1 <= ratio.high:
        return f"is no faster than {base} as far as can be measured ({between} of its time)"
    if ratio.median > 1:
        return f"takes {ratio.median:.2f} times as long as {base} ({between})"
    return f"is only {1 / ratio.median - 1:.0%} faster than {base} ({between} of its time)"


def _memory(base: PrecisionCost, other: PrecisionCost) -> Iterator[Finding]:
    before, after = base.memory.peak, other.memory.peak
    if after <= (1 - WORTH) * before:
        return
    half_weights = other.precision == "fp16-weights"
    reason = _with_masters(base, other) if half_weights else _in_mixed_precision(other)
    old, new = base.memory.largest.activations, other.memory.largest.activations
    yield Finding(
        code="HD202",
        subject=other.precision,
        message=f"{other.precision} needs {size_text(after)} at its peak, {base.precision} "
        f"{size_text(before)}: {_change(before, after)}.",
        why=f"{reason.why} Activations kept for the backward pass shrink: {size_text(old)} to "
        f"{size_text(new)}.",
        cure="Expected, not broken. Use the room where half helps, in activations (a larger batch, longer "
        f"sequences), or {reason.cure}.",
    )


def _in_mixed_precision(other: PrecisionCost) -> Reason:
    """What mixed precision leaves as it was."""
    parts = other.memory.largest
    fixed = parts.weights + parts.gradients + parts.optimizer
    copies = parts.weight_copies
    added = f" Autocast adds {size_text(copies)} of half copies of the weights." if copies else ""
    return Reason(
        why=f"Weights ({size_text(parts.weights)}), gradients ({size_text(parts.gradients)}) and optimizer "
        f"state ({size_text(parts.optimizer)}) stay as they are in mixed precision: {size_text(fixed)}."
        f"{added}",
        cure="shrink what stays: 8-bit optimizer state, adapters over a frozen half base",
    )


def _with_masters(base: PrecisionCost, other: PrecisionCost) -> Reason:
    """What half weights need besides: masters in the optimizer, and their gradients in its step."""
    old, new = base.memory.largest, other.memory.largest
    beside = other.memory.in_update.other - base.memory.in_update.other
    during = f", and their gradients take {size_text(beside)} in its step" if beside > 0 else ""
    return Reason(
        why=f"Weights ({size_text(old.weights)} to {size_text(new.weights)}) and gradients "
        f"({size_text(old.gradients)} to {size_text(new.gradients)}) shrink, but the optimizer "
        f"updates FP32 masters: its state goes from {size_text(old.optimizer)} to "
        f"{size_text(new.optimizer)}{during}.",
        cure="do without masters: adapters over a frozen half base, which needs none",
    )


def _change(before: int, after: int) -> str:
    share = after / before - 1
    return (
        f"{abs(share):.0%} {'more' if share > 0 else 'less'}" if abs(share) >= 0.005 else "no less"
    )


def _shapes(cost: Cost) -> Iterator[Finding]:
    found = [shape for shape in cost.shapes if shape.share >= 0.01]
    if not found:
        return
    on_cores = cost.device.startswith("cuda")
    yield Finding(
        code="HD203",
        severity="warning" if on_cores else "note",
        subject=found[0].module,
        message=f"Dimensions that are no multiple of 8: {_listed(found)}.",
        why="Tensor cores take 16 bytes at once, 8 half values; other sizes are padded or take a slower way"
        + ("." if on_cores else ", on a GPU."),
        cure="Pad the dimension to the size in brackets (a vocabulary or a class count may be larger than "
        "what is used); from the A100 on, multiples of 64 are better still.",
    )


def _listed(shapes: Sequence[MissedShape]) -> str:
    named = [
        f"{s.module or 'the model'}.{s.dimension} {s.size} ({s.better})" for s in shapes[:NAMED]
    ]
    more = len(shapes) - NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")
