"""Explain why 16 bits are not faster, not smaller, or do not fit: pure functions of the measurements.

Mixed precision makes two things cheaper: matrix products, if the machine computes them faster in half, and
activations kept for the backward pass. The rest of a step stays the same. So there are few reasons for a
missing gain, and the measurements show which of them apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from halfguard.catalogue import Severity
from halfguard.records.cost import Cost, MemoryParts, PrecisionCost, Spread
from halfguard.records.finding import Finding
from halfguard.records.sizes import format_bytes

MIN_IMPROVEMENT = 0.10  # a smaller gain is not worth the risk of half precision
SMALL_SHARE = 0.3  # of a step; if matrix products take less, making them faster changes little
SHORT_OPERATION = (
    30e-6  # seconds per operation; below it a step is mostly Python and kernel launches
)
FAST_RATIO = 0.8  # time of a half matrix product over FP32's; below it half counts as fast
CAST_SHARE = 0.2  # of all operations; more casts are a reason


class Reason(NamedTuple):
    """A cause and its cure, as text."""

    why: str
    cure: str


def gain_findings(cost: Cost, severity: Severity = "warning") -> tuple[Finding, ...]:
    """Find out why each 16-bit precision brings little gain."""
    base = cost.baseline
    if base is None:
        return ()
    found = [
        finding
        for other in cost.costs
        if other is not base and not other.failure
        for finding in (*_time(cost, base, other), *_memory(base, other))
    ]
    return tuple(finding.model_copy(update={"severity": severity}) for finding in found)


def _time(cost: Cost, base: PrecisionCost, other: PrecisionCost) -> Iterator[Finding]:
    if other.ratio is None or other.ratio.median <= 1 / (1 + MIN_IMPROVEMENT):
        return
    reasons = list(_slow_reasons(cost, base, other))
    yield Finding(
        code="HD201",
        subject=other.precision,
        message=f"{other.precision} {_speed(other.ratio, base.precision)} on {cost.device}.",
        why=" ".join(reason.why for reason in reasons)
        or "Only matrix products are faster in 16-bit precision, and they are a small part of this step.",
        cure=reasons[0].cure
        if reasons
        else "Train in FP32 here, or make the matrix products larger: a larger batch, wider layers.",
    )


def _slow_reasons(cost: Cost, base: PrecisionCost, other: PrecisionCost) -> Iterator[Reason]:
    """Yield the reasons that the measurements show, the most important first."""
    if other.matmul_ratio is not None and other.matmul_ratio > FAST_RATIO:
        yield Reason(
            why=(
                "Matrix products are not faster in this precision on this machine: a large one takes "
                f"{other.matmul_ratio:.2f} of the time of FP32."
            ),
            cure="Train in FP32 on this machine, or in another 16-bit precision if that is fast here. "
            'halfguard doctor --gpu "NAME" shows what a card can do.',
        )
    if base.seconds and cost.product_flops:
        share = base.flops / cost.product_flops / base.seconds
        if share < SMALL_SHARE:
            yield _little_to_gain(base, share)
    if cost.fp32_products != "highest":
        yield Reason(
            why=(
                "FP32 is already fast here: its matrix products run in TF32 or less (float32 "
                f"matmul precision {cost.fp32_products!r}), on the same hardware units as 16-bit "
                "products."
            ),
            cure="Nothing is wrong: TF32 already provides most of the speedup. For a true FP32 "
            'baseline, call torch.set_float32_matmul_precision("highest").',
        )
    if other.operations and other.casts / other.operations > CAST_SHARE:
        extra = other.operations - base.operations
        yield Reason(
            why=f"{other.casts} of its {other.operations} operations are casts ({extra:+d} operations "
            f"compared with {base.precision}).",
            cure="Casts are worthwhile only if the layer after them is large. Keep modules with "
            "small layers in FP32 (halfguard.fp32_island), so that autocast casts less "
            "often.",
        )


def _little_to_gain(base: PrecisionCost, share: float) -> Reason:
    percent = f"{share:.0%}" if share >= 0.01 else "less than 1%"
    products = (
        f"Only matrix products are faster in 16-bit precision. They are {percent} of a step in "
        f"{base.precision}, at the speed of this machine."
    )
    if (base.seconds or 0.0) / max(base.operations, 1) < SHORT_OPERATION:
        return Reason(
            why=f"The model is too small for this machine. {products} The rest of the step "
            f"consists of {base.operations} small operations, which take the same time in any "
            "precision.",
            cure="Make operations larger: a larger batch, fused operations (torch.compile, a fused "
            "optimizer). If neither is possible, FP32 is the right choice for this model.",
        )
    return Reason(
        why=(
            f"{products} The rest of the step is limited by memory bandwidth: elementwise operations, "
            "normalization and the optimizer."
        ),
        cure="Fuse operations that move data (torch.compile, a fused optimizer, "
        "scaled_dot_product_attention), then measure again.",
    )


def _speed(ratio: Spread, base: str) -> str:
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
        cure=(
            "This is expected. 16-bit precision saves activation memory, so use a larger batch or "
            f"longer sequences. Or {reason.cure}."
        ),
    )


def _in_mixed_precision(other: PrecisionCost) -> Reason:
    """Name the parts that mixed precision does not shrink."""
    parts = other.memory.largest
    fixed = parts.weights + parts.gradients + parts.optimizer
    copies = format_bytes(parts.weight_copies)
    added = (
        f" Autocast adds {copies} of 16-bit copies of the weights." if parts.weight_copies else ""
    )
    return Reason(
        why=f"Weights ({format_bytes(parts.weights)}), gradients ({format_bytes(parts.gradients)}) and "
        f"optimizer state ({format_bytes(parts.optimizer)}) stay FP32 in mixed precision: "
        f"{format_bytes(fixed)}.{added}",
        cure="reduce the rest with 8-bit optimizer state or with adapters on a frozen 16-bit base",
    )


def _with_masters(base: PrecisionCost, other: PrecisionCost) -> Reason:
    """Name the additional parts of half weights: FP32 masters, and their gradients in the update."""
    old, new = base.memory.largest, other.memory.largest
    master_gradients = other.memory.in_update.other - base.memory.in_update.other
    during = (
        f", and their gradients need {format_bytes(master_gradients)} during its step"
        if master_gradients > 0
        else ""
    )
    return Reason(
        why=(
            f"Weights ({format_bytes(old.weights)} to {format_bytes(new.weights)}) and gradients "
            f"({format_bytes(old.gradients)} to {format_bytes(new.gradients)}) shrink, but the optimizer "
            f"updates FP32 master weights: its state goes from {format_bytes(old.optimizer)} to "
            f"{format_bytes(new.optimizer)}{during}."
        ),
        cure="train adapters on a frozen 16-bit base, which needs no master weights",
    )


def _change(before: int, after: int) -> str:
    share = after / before - 1
    if abs(share) < 0.005:
        return "no less"
    return f"{abs(share):.0%} {'more' if share > 0 else 'less'}"


_NOT_COUNTED = (
    "Only tensors are counted. On a GPU, the driver and workspaces need several hundred MB more."
)
_FOR_ACTIVATIONS = (
    "Halve the micro-batch size and accumulate twice as many micro-batches: the update is the same unless "
    "the model has BatchNorm. Checkpoint its repeated blocks (torch.utils.checkpoint, or "
    "model.gradient_checkpointing_enable() in transformers): the result is the same, but their forward pass "
    "runs twice."
)
_FOR_WEIGHTS = (
    "Use an optimizer with 8-bit state (AdamW8bit from bitsandbytes or torchao), which is a "
    "quarter of the size of Adam's state. Train adapters (LoRA) on a frozen 16-bit base, in FP32 "
    "with halfguard.upcast_trainable(model), and compare with halfguard validate."
)


def fit_findings(cost: Cost) -> Iterator[Finding]:
    """Find steps that ran out of memory or failed otherwise, and compare the others with the budget."""
    failed = [one for one in cost.costs if one.failure]
    passed = [one for one in cost.costs if not one.failure]
    for failure in dict.fromkeys(one.failure for one in failed):
        alike = [one for one in failed if one.failure == failure]
        yield (
            _out_of_memory(alike, passed, cost.device)
            if alike[0].out_of_memory
            else _failed(alike, cost.baseline)
        )
    if cost.budget is not None and passed:
        yield _budget(passed, cost.budget)


def _failed(failed: Sequence[PrecisionCost], passed: PrecisionCost | None) -> Finding:
    return Finding(
        code="HD100",
        severity="error",
        subject=_join_names(failed),
        message=f"A step in {_join_names(failed)} raised {failed[0].failure}",
        cure="The step failed in every precision. Run one step of the job without halfguard."
        if passed is None
        else (
            f"The step ran in {passed.precision}. Keep modules that need FP32 in FP32 with "
            "halfguard.fp32_island(module)."
        ),
    )


def _out_of_memory(
    failed: Sequence[PrecisionCost], passed: Sequence[PrecisionCost], device: str
) -> Finding:
    parts = failed[0].memory.largest
    fits = "".join(
        f"Train in {one.precision}: a step fits there, with {format_bytes(one.memory.peak)}. "
        for one in passed[:1]
    )
    return Finding(
        code="HD204",
        severity="error",
        subject=_join_names(failed),
        message=f"A step in {_join_names(failed)} ran out of memory on {device}: {failed[0].failure}",
        why=(
            f"Before the failure, the step needed: weights {format_bytes(parts.weights)}, "
            f"gradients {format_bytes(parts.gradients)}, optimizer state "
            f"{format_bytes(parts.optimizer)}, activations {format_bytes(parts.activations)}. "
            f"{_NOT_COUNTED}"
        ),
        cure=fits + _advice(parts),
    )


def _join_names(costs: Sequence[PrecisionCost]) -> str:
    *others, last = (one.precision for one in costs)
    return f"{', '.join(others)} and {last}" if others else last


def _budget(passed: list[PrecisionCost], budget: int) -> Finding:
    fits = [one for one in passed if one.memory.peak <= budget]
    needs = ", ".join(f"{one.precision} {format_bytes(one.memory.peak)}" for one in passed)
    if fits:
        verb = "fits" if len(fits) == 1 else "fit"
        return Finding(
            code="HD205",
            severity="note",
            message=f"{_join_names(fits)} {verb} into {format_bytes(budget)}; needed: {needs}.",
            why=_NOT_COUNTED,
        )
    return Finding(
        code="HD205",
        severity="error",
        message=f"A step does not fit into {format_bytes(budget)}; needed: {needs}.",
        why=_NOT_COUNTED,
        cure=_advice(min(passed, key=lambda one: one.memory.peak).memory.at_peak),
    )


def _advice(parts: MemoryParts) -> str:
    """Name the changes that shrink the larger half of the memory first."""
    for_activations = parts.activations >= parts.weights + parts.gradients + parts.optimizer
    advice = [_FOR_ACTIVATIONS, _FOR_WEIGHTS]
    return " ".join(advice if for_activations else reversed(advice))
