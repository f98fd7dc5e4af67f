"""Find steps that do not fit into memory, and say what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halfguard.records.cost import Cost, MemoryParts, PrecisionCost
from halfguard.records.finding import Finding
from halfguard.records.sizes import format_bytes

_NOT_COUNTED = (
    "Only tensors are counted: on a GPU, driver and workspaces need several hundred MB more."
)
_FOR_ACTIVATIONS = (
    "Halve the micro-batch and accumulate twice as many: the update is the same, unless the model has "
    "BatchNorm. Checkpoint its repeated blocks (torch.utils.checkpoint, or "
    "model.gradient_checkpointing_enable() in transformers): the result is the same, their forward pass runs "
    "twice."
)
_FOR_WEIGHTS = (
    "Use an optimizer with 8-bit state (AdamW8bit of bitsandbytes or torchao), a quarter of Adam's. Train "
    "adapters (LoRA) on a frozen half base, in FP32 with halfguard.upcast_trainable(model), and compare with "
    "halfguard validate."
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
        code="HD206",
        severity="error",
        subject=_join_names(failed),
        message=f"A step in {_join_names(failed)} raised {failed[0].failure}",
        cure="No precision passed. Run one step of the job without halfguard."
        if passed is None
        else f"It passed in {passed.precision}. Keep a module that needs FP32 in FP32: "
        "halfguard.fp32_island(module).",
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
        why=f"Until then it needed: weights {format_bytes(parts.weights)}, gradients "
        f"{format_bytes(parts.gradients)}, optimizer state {format_bytes(parts.optimizer)}, activations "
        f"{format_bytes(parts.activations)}. {_NOT_COUNTED}",
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
