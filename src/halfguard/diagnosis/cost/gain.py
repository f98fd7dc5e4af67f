"""Explain why 16 bits are not faster, or not smaller: a pure function of the measurements.

Mixed precision makes two things cheaper: matrix products, if the machine computes them faster in half, and
activations kept for the backward pass. The rest of a step stays the same. So there are few reasons for a
missing gain, and the measurements show which of them apply.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.cost.reasons import Reason, find_slow_reasons
from halfguard.records.cost import Cost, PrecisionCost, TimeRatio
from halfguard.records.finding import Finding, Severity
from halfguard.records.sizes import format_bytes

MIN_IMPROVEMENT = 0.10  # a smaller gain is not worth the risk of half precision
MAX_NAMED = 5  # dimensions in a finding


def gain_findings(cost: Cost, severity: Severity = "warning") -> tuple[Finding, ...]:
    """Find out why each 16-bit precision brings little gain, and which dimensions slow all of them."""
    base = cost.baseline
    if base is None:
        return ()
    found = [
        finding
        for other in cost.costs
        if other is not base and not other.failure
        for finding in (*_time(cost, base, other), *_memory(base, other))
    ]
    rated = (finding.model_copy(update={"severity": severity}) for finding in found)
    return (*rated, *_shapes(cost))


def _time(cost: Cost, base: PrecisionCost, other: PrecisionCost) -> Iterator[Finding]:
    if other.ratio is None or other.ratio.median <= 1 / (1 + MIN_IMPROVEMENT):
        return
    reasons = list(find_slow_reasons(cost, base, other))
    yield Finding(
        code="HD201",
        subject=other.precision,
        message=f"{other.precision} {_speed(other.ratio, base.precision)} on {cost.device}.",
        why=" ".join(reason.why for reason in reasons)
        or "Only matrix products are faster in 16 bits, and they are a small part of this step.",
        cure=reasons[0].cure
        if reasons
        else "Train in FP32 here, or make the matrix products larger: a larger batch, wider layers.",
    )


def _speed(ratio: TimeRatio, base: str) -> str:
    quartiles = f"quartiles {ratio.low:.2f} to {ratio.high:.2f}"
    if ratio.low <= 1 <= ratio.high:
        return f"is not measurably faster than {base} ({quartiles} of its time)"
    if ratio.median > 1:
        return f"takes {ratio.median:.2f} times as long as {base} ({quartiles})"
    return f"is only {1 / ratio.median - 1:.0%} faster than {base} ({quartiles} of its time)"


def _memory(base: PrecisionCost, other: PrecisionCost) -> Iterator[Finding]:
    before, after = base.memory.peak, other.memory.peak
    if after <= (1 - MIN_IMPROVEMENT) * before:
        return
    half_weights = other.precision == "fp16-weights"
    reason = _with_masters(base, other) if half_weights else _in_mixed_precision(other)
    old, new = base.memory.largest.activations, other.memory.largest.activations
    yield Finding(
        code="HD202",
        subject=other.precision,
        message=f"{other.precision} needs {format_bytes(after)} at its peak, {base.precision} "
        f"{format_bytes(before)}: {_change(before, after)}.",
        why=f"{reason.why} Activations kept for the backward pass shrink: {format_bytes(old)} to "
        f"{format_bytes(new)}.",
        cure="This is expected. Half saves activation memory, so use a larger batch or longer sequences; or "
        f"{reason.cure}.",
    )


def _in_mixed_precision(other: PrecisionCost) -> Reason:
    """Name the parts that mixed precision does not shrink."""
    parts = other.memory.largest
    fixed = parts.weights + parts.gradients + parts.optimizer
    copies = format_bytes(parts.weight_copies)
    added = f" Autocast adds {copies} of half copies of the weights." if parts.weight_copies else ""
    return Reason(
        why=f"Weights ({format_bytes(parts.weights)}), gradients ({format_bytes(parts.gradients)}) and "
        f"optimizer state ({format_bytes(parts.optimizer)}) stay FP32 in mixed precision: "
        f"{format_bytes(fixed)}.{added}",
        cure="shrink the rest: 8-bit optimizer state, adapters on a frozen half base",
    )


def _with_masters(base: PrecisionCost, other: PrecisionCost) -> Reason:
    """Name the additional parts of half weights: FP32 masters, and their gradients in the update."""
    old, new = base.memory.largest, other.memory.largest
    master_gradients = other.memory.in_update.other - base.memory.in_update.other
    during = (
        f", and their gradients take {format_bytes(master_gradients)} in its step"
        if master_gradients > 0
        else ""
    )
    return Reason(
        why=f"Weights ({format_bytes(old.weights)} to {format_bytes(new.weights)}) and gradients "
        f"({format_bytes(old.gradients)} to {format_bytes(new.gradients)}) shrink, but the optimizer "
        f"updates FP32 masters: its state goes from {format_bytes(old.optimizer)} to "
        f"{format_bytes(new.optimizer)}{during}.",
        cure="train adapters on a frozen half base, which needs no masters",
    )


def _change(before: int, after: int) -> str:
    share = after / before - 1
    if abs(share) < 0.005:
        return "no less"
    return f"{abs(share):.0%} {'more' if share > 0 else 'less'}"


def _shapes(cost: Cost) -> Iterator[Finding]:
    found = [shape for shape in cost.shapes if shape.share >= 0.01]
    if not found:
        return
    on_gpu, more = cost.device.startswith("cuda"), len(found) - MAX_NAMED
    named = [f"{s.module or 'the model'}.{s.dimension} {s.size} ({s.better})" for s in found]
    names = ", ".join(named[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    yield Finding(
        code="HD203",
        severity="warning" if on_gpu else "note",
        subject=found[0].module,
        message=f"Dimensions that are not a multiple of 8: {names}.",
        why="Tensor cores read 16 bytes at once, 8 half values. Other sizes are padded or run slower"
        + ("." if on_gpu else ", on a GPU."),
        cure="Pad the dimension to the size in brackets (a vocabulary or class count may be larger than "
        "needed). On the A100 and later, multiples of 64 are even better.",
    )
