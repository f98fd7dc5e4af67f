"""The checklist before 16 bits go into production, answered from the evidence where that is possible.

Items that no run can answer are left to a person, with the known facts beside them. "unknown" means that the
study did not measure the item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from halfguard.records.sizes import format_bytes
from halfguard.records.study import (
    CheckItem,
    ChecklistAnswer,
    Comparison,
    RunResult,
    Study,
    TrainingStats,
    VerdictLabel,
)

_NORMS = (0.5, 2.0)  # a median outside these limits is a different training, not noise
_SKIPPED = 0.1  # a loss scale that adapts skips fewer steps


def checklist(
    study: Study, comparisons: Sequence[Comparison], stats: Sequence[TrainingStats], digest: str
) -> tuple[CheckItem, ...]:
    """Return all items, in the order of a review; ``digest`` is the study's."""
    candidates = stats[1:]
    return (
        _baseline(study),
        _paired(study),
        _quality(comparisons),
        _finite(candidates),
        _gradients(candidates),
        _speed(study, candidates),
        _memory(study, candidates),
        CheckItem(
            code="documented",
            item="The result is saved with everything needed to repeat the verdict",
            answer="yes",
            evidence=f"{len(study.runs)} runs, evidence {digest[:12]}",
        ),
        CheckItem(
            code="way-back",
            item="Going back to FP32 is one change, and it is known",
            answer="yes",
            evidence="shown below",
        ),
        _full_run(study),
        CheckItem(
            code="approved",
            item="A responsible person has read the evidence and signed",
            answer="person",
            evidence="halfguard validate approve RUN --by NAME",
        ),
        CheckItem(
            code="watched",
            item="Someone monitors the first production runs",
            answer="person",
            evidence="a guard with run_dir writes a journal; halfguard report RUN_DIR shows it",
        ),
    )


def _baseline(study: Study) -> CheckItem:
    name, metric = study.spec["baseline"]["name"], study.spec["metric"]["name"]
    seeds = study.spec["seeds"]
    runs = [run for run in study.runs if run.candidate == name]
    good = [run for run in runs if run.failure is None and metric in run.metrics]
    return CheckItem(
        code="baseline",
        item="The baseline finished with every seed",
        answer="yes" if len(good) == len(seeds) else "no",
        evidence=f"{name}: {len(good)} of {len(seeds)} seeds",
    )


def _paired(study: Study) -> CheckItem:
    """Check that runs with one seed had the same steps, initial weights and order of batches."""
    facts: dict[str, Callable[[RunResult], object]] = {
        "steps": lambda run: run.steps,
        "initial weights": lambda run: run.initial_weights,
        "order of batches": lambda run: run.batch_order,
    }
    groups: dict[int, list[RunResult]] = {}
    for run in study.runs:
        if run.failure is None:
            groups.setdefault(run.seed, []).append(run)
    same: list[str] = []
    differ: list[str] = []
    unknown: list[str] = []
    for fact, get in facts.items():
        seen = [{get(run) for run in group} for group in groups.values()]
        if any(None in values for values in seen) or not seen:
            unknown.append(fact)
        else:
            (same if all(len(values) == 1 for values in seen) else differ).append(fact)
    answer: ChecklistAnswer = "no" if differ else "unknown" if unknown else "yes"
    parts = {"the same": same, "NOT the same": differ, "not reported": unknown}
    evidence = "; ".join(f"{what}: {', '.join(facts)}" for what, facts in parts.items() if facts)
    return CheckItem(
        code="paired",
        item="Each seed is the same experiment in every precision",
        answer=answer,
        evidence=evidence,
    )


def _quality(comparisons: Sequence[Comparison]) -> CheckItem:
    labels = {comparison.word for comparison in comparisons}
    answer: ChecklistAnswer = (
        "no" if labels & {VerdictLabel.FAIL, VerdictLabel.MARGINAL} else "unknown"
    )
    if labels == {VerdictLabel.PASS}:
        answer = "yes"
    evidence = [
        f"{c.candidate}: {c.word}"
        + (f", {c.loss:z.2%} ({c.low:z.2%} to {c.high:z.2%})" if math.isfinite(c.loss) else "")
        for c in comparisons
    ]
    return CheckItem(
        code="quality",
        item="The degradation, with its confidence interval, is below the threshold",
        answer=answer,
        evidence="; ".join(evidence),
    )


def _finite(stats: Sequence[TrainingStats]) -> CheckItem:
    evidence = [
        f"{e.candidate}: {e.skipped} of {e.steps} steps skipped, {e.retried} repeated in FP32, "
        f"{e.nonfinite} with a loss or norm that is not finite"
        for e in stats
    ]
    # A dynamic loss scale skips some steps while it adapts. NaN in the weights makes every later step NaN.
    bad = any(e.nonfinite > e.skipped + e.retried or e.skipped > _SKIPPED * e.steps for e in stats)
    answer: ChecklistAnswer = "no" if bad else "yes" if all(e.steps for e in stats) else "unknown"
    return CheckItem(
        code="finite",
        item="No NaN or infinity reached the weights, and at least 90% of the steps were applied",
        answer=answer,
        evidence="; ".join(evidence),
    )


def _gradients(stats: Sequence[TrainingStats]) -> CheckItem:
    low, high = _NORMS

    def check(one: TrainingStats) -> tuple[bool | None, str]:
        if one.norm_ratio is None:
            return None, "no norms"
        good = low <= one.norm_ratio <= high and not one.norm_zero
        zero = f", {one.norm_zero} steps with zero gradients" if one.norm_zero else ""
        return good, f"{one.norm_ratio:.2f} times the baseline's{zero}"

    item = "Gradient norms are close to the baseline's: neither vanishing nor much larger"
    return _combine("gradients", item, stats, check)


def _speed(study: Study, stats: Sequence[TrainingStats]) -> CheckItem:
    wanted = 1 + study.spec["thresholds"].get("speedup", 0.1)

    def check(one: TrainingStats) -> tuple[bool | None, str]:
        if one.speed is None or one.speed_low is None or one.speed_high is None:
            return None, "not measured"
        between = f"{one.speed:.2f} times ({one.speed_low:.2f} to {one.speed_high:.2f})"
        if one.speed_low >= wanted:
            return True, between
        return (False if one.speed_high < wanted else None), between

    return _combine("speed", f"Training is at least {wanted:.2f} times as fast", stats, check)


def _memory(study: Study, stats: Sequence[TrainingStats]) -> CheckItem:
    limit: int | None = study.spec["thresholds"].get("memory")

    def check(one: TrainingStats) -> tuple[bool | None, str]:
        if one.peak_bytes is None:
            return None, "not measured"
        share = f", {one.memory:.0%} of the baseline's" if one.memory is not None else ""
        good = one.peak_bytes <= limit if limit is not None else None
        return good, f"{format_bytes(one.peak_bytes)}{share}"

    if limit is None:
        return _combine("memory", "Memory (the specification sets no limit)", stats, check)
    return _combine("memory", f"Memory stays within {format_bytes(limit)}", stats, check)


def _combine(
    code: str,
    item: str,
    stats: Iterable[TrainingStats],
    check: Callable[[TrainingStats], tuple[bool | None, str]],
) -> CheckItem:
    """Make one item for all candidates: no if any is no, yes if all are yes."""
    found = [(one.candidate, *check(one)) for one in stats]
    goods = [good for _, good, _ in found]
    answer: ChecklistAnswer = "no" if False in goods else "unknown" if None in goods else "yes"
    evidence = "; ".join(f"{name}: {text}" for name, _, text in found)
    return CheckItem(code=code, item=item, answer=answer, evidence=evidence)


def _full_run(study: Study) -> CheckItem:
    steps = max((run.steps for run in study.runs), default=0)
    return CheckItem(
        code="full-run",
        item="One full-length training run was completed in 16 bits",
        answer="person",
        evidence=f"the longest run of this study has {steps or 'an unknown number of'} steps",
    )
