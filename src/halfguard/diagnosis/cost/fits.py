"""Find steps that do not fit into memory, and say what to change first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halfguard.records.cost import Cost, MemorySaving, PrecisionCost
from halfguard.records.finding import Finding
from halfguard.records.sizes import format_bytes

_NOT_COUNTED = (
    "Only tensors are counted: on a GPU, driver and workspaces need several hundred MB more."
)


def fit_findings(cost: Cost) -> Iterator[Finding]:
    """Find steps that ran out of memory or failed otherwise, and compare the others with the budget."""
    failed = [one for one in cost.costs if one.failure]
    for failure in dict.fromkeys(one.failure for one in failed):
        alike = [one for one in failed if one.failure == failure]
        yield (
            _out_of_memory(alike, cost) if alike[0].out_of_memory else _failed(alike, cost.baseline)
        )
    passed = [one for one in cost.costs if not one.failure]
    if cost.budget is not None and passed:
        yield _budget(passed, cost.budget, cost.savings)


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


def _out_of_memory(failed: Sequence[PrecisionCost], cost: Cost) -> Finding:
    least = min(failed, key=lambda one: one.memory.peak)
    parts = least.memory.largest
    return Finding(
        code="HD204",
        severity="error",
        subject=_join_names(failed),
        message=f"A step in {_join_names(failed)} ran out of memory on {cost.device}: {least.failure}",
        why=f"In {least.precision} it needs about {format_bytes(least.memory.peak)}: weights "
        f"{format_bytes(parts.weights)}, gradients {format_bytes(parts.gradients)}, optimizer state "
        f"{format_bytes(parts.optimizer)}, activations {format_bytes(parts.activations)}. {_NOT_COUNTED}",
        cure=_list_changes(cost.savings, None),
    )


def _join_names(costs: Sequence[PrecisionCost]) -> str:
    *others, last = (one.precision for one in costs)
    return f"{', '.join(others)} and {last}" if others else last


def _budget(passed: list[PrecisionCost], budget: int, changes: Sequence[MemorySaving]) -> Finding:
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
        cure=_list_changes(changes, budget),
    )


def _list_changes(changes: Sequence[MemorySaving], budget: int | None) -> str:
    """List the changes in order, up to the one that makes the step fit."""
    if not changes:
        return "No known change saves enough memory: use a smaller model or a larger machine."
    lines = []
    for number, saving in enumerate(changes, 1):
        saved = f"saves at least {format_bytes(saving.saves)}; " if saving.saves else ""
        effect = f"{saved}then {format_bytes(saving.peak)}"
        lines.append(f"{number}. {saving.change} ({effect})")
        if budget is not None and saving.peak <= budget:
            return f"Make these changes in order, until it fits: {'; '.join(lines)}: fits."
    tail = "" if budget is None else " All together are not enough: use a smaller model."
    return f"Make these changes in order, until it fits: {'; '.join(lines)}.{tail}"
