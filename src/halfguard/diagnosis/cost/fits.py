"""Whether a step fits into the memory there is, and if not, what to change first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halfguard.records.cost import Cost, PrecisionCost, Saving
from halfguard.records.finding import Finding
from halfguard.records.sizes import size_text

_NOT_COUNTED = (
    "Only tensors are counted: on a GPU, several hundred MB of driver and workspace come on top."
)


def fit_findings(cost: Cost) -> Iterator[Finding]:
    """What ran out of memory, what failed otherwise, and whether the budget holds."""
    failed = [one for one in cost.costs if one.failure]
    for failure in dict.fromkeys(one.failure for one in failed):
        alike = [one for one in failed if one.failure == failure]
        yield _ran_out(alike, cost) if alike[0].out_of_memory else _raised(alike, cost.baseline)
    passed = [one for one in cost.costs if not one.failure]
    if cost.budget is not None and passed:
        yield _budget(passed, cost.budget, cost.savings)


def _raised(failed: Sequence[PrecisionCost], passed: PrecisionCost | None) -> Finding:
    return Finding(
        code="HD206",
        severity="error",
        subject=_names(failed),
        message=f"A step in {_names(failed)} raised {failed[0].failure}",
        cure="Run one step of the job without halfguard: no precision passed."
        if passed is None
        else f"It passed in {passed.precision}. A module that cannot do without FP32 can keep it: "
        "halfguard.fp32_island(module).",
    )


def _ran_out(failed: Sequence[PrecisionCost], cost: Cost) -> Finding:
    least = min(failed, key=lambda one: one.memory.peak)
    parts = least.memory.largest
    return Finding(
        code="HD204",
        severity="error",
        subject=_names(failed),
        message=f"A step in {_names(failed)} ran out of memory on {cost.device}: {least.failure}",
        why=f"In {least.precision} it needs about {size_text(least.memory.peak)}: weights "
        f"{size_text(parts.weights)}, gradients {size_text(parts.gradients)}, optimizer state "
        f"{size_text(parts.optimizer)}, activations {size_text(parts.activations)}. {_NOT_COUNTED}",
        cure=_first(cost.savings, None),
    )


def _names(costs: Sequence[PrecisionCost]) -> str:
    *others, last = (one.precision for one in costs)
    return f"{', '.join(others)} and {last}" if others else last


def _budget(passed: Sequence[PrecisionCost], budget: int, changes: Sequence[Saving]) -> Finding:
    fits = [one for one in passed if one.memory.peak <= budget]
    needs = ", ".join(f"{one.precision} {size_text(one.memory.peak)}" for one in passed)
    if fits:
        verb = "fits" if len(fits) == 1 else "fit"
        return Finding(
            code="HD205",
            severity="note",
            message=f"{_names(fits)} {verb} into {size_text(budget)}; needed: {needs}.",
            why=_NOT_COUNTED,
        )
    return Finding(
        code="HD205",
        severity="error",
        message=f"A step does not fit into {size_text(budget)}; needed: {needs}.",
        why=_NOT_COUNTED,
        cure=_first(changes, budget),
    )


def _first(changes: Sequence[Saving], budget: int | None) -> str:
    """The changes in their order, as far as they are needed."""
    if not changes:
        return "Nothing known here makes it noticeably smaller: use a smaller model or a larger machine."
    lines = []
    for number, saving in enumerate(changes, 1):
        saved = f"saves at least {size_text(saving.saves)}; " if saving.saves else ""
        effect = f"{saved}then {size_text(saving.peak)}"
        lines.append(f"{number}. {saving.change} ({effect})")
        if budget is not None and saving.peak <= budget:
            return f"Change in this order, until it fits: {'; '.join(lines)}: fits."
    tail = "" if budget is None else " All of them are not enough: a smaller model is needed."
    return f"Change in this order, until it fits: {'; '.join(lines)}.{tail}"
