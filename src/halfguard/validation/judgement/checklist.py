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

Answer = tuple[ChecklistAnswer, str]  # with its evidence
Check = Callable[[TrainingStats], tuple[bool | None, str]]  # None: not known


def checklist(
    study: Study, comparisons: Sequence[Comparison], stats: Sequence[TrainingStats], digest: str
) -> tuple[CheckItem, ...]:
    """Return all items, in the order of a review; ``digest`` is the study's."""
    candidates, limits = stats[1:], study.spec["thresholds"]
    wanted, memory = 1 + limits.get("speedup", 0.1), limits.get("memory")
    steps = max((run.steps for run in study.runs), default=0) or "an unknown number of"
    items: dict[str, tuple[str, Answer]] = {
        "baseline": ("The baseline finished with every seed", _baseline(study)),
        "paired": ("Each seed is the same experiment in every precision", _paired(study)),
        "quality": (
            "The degradation, with its confidence interval, is below the threshold",
            _quality(comparisons),
        ),
        "finite": (
            "No NaN or Inf reached the weights, and at least 90% of the steps were applied",
            _finite(candidates),
        ),
        "gradients": (
            "Gradient norms are close to the baseline's: neither vanishing nor much larger",
            _combine(candidates, _gradients),
        ),
        "speed": (
            f"Training is at least {wanted:.2f} times as fast",
            _combine(candidates, lambda one: _speed(one, wanted)),
        ),
        "memory": (
            "Memory (the specification sets no limit)"
            if memory is None
            else f"Memory stays within {format_bytes(memory)}",
            _combine(candidates, lambda one: _memory(one, memory)),
        ),
        "documented": (
            "The result is saved with everything needed to repeat the verdict",
            ("yes", f"{len(study.runs)} runs, evidence {digest[:12]}"),
        ),
        "way-back": ("Going back to FP32 takes one known change", ("yes", "shown below")),
        "full-run": (
            "One full-length 16-bit training run was completed",
            ("person", f"the longest run of this study has {steps} steps"),
        ),
        "approved": (
            "A responsible person has read the evidence and signed",
            ("person", "halfguard validate approve RUN --by NAME"),
        ),
        "watched": (
            "Someone monitors the first production runs",
            ("person", "a guard with run_dir writes a journal; halfguard report RUN_DIR shows it"),
        ),
    }
    return tuple(
        CheckItem(code=code, item=item, answer=answer, evidence=evidence)
        for code, (item, (answer, evidence)) in items.items()
    )


def _baseline(study: Study) -> Answer:
    name, metric = study.spec["baseline"]["name"], study.spec["metric"]["name"]
    seeds = study.spec["seeds"]
    runs = [run for run in study.runs if run.candidate == name]
    good = [run for run in runs if run.failure is None and metric in run.metrics]
    answer: ChecklistAnswer = "yes" if len(good) == len(seeds) else "no"
    return answer, f"{name}: {len(good)} of {len(seeds)} seeds"


def _paired(study: Study) -> Answer:
    """Check that runs with one seed had the same steps, initial weights and order of batches."""
    groups: dict[int, list[RunResult]] = {}
    for run in study.runs:
        if run.failure is None:
            groups.setdefault(run.seed, []).append(run)
    found: dict[str, list[str]] = {"the same": [], "NOT the same": [], "not reported": []}
    for field in ("steps", "initial_weights", "batch_order"):
        seen = [{getattr(run, field) for run in group} for group in groups.values()]
        if any(None in values for values in seen) or not seen:
            what = "not reported"
        else:
            what = "the same" if all(len(values) == 1 for values in seen) else "NOT the same"
        found[what].append({"batch_order": "order of batches"}.get(field, field.replace("_", " ")))
    differ, unknown = found["NOT the same"], found["not reported"]
    evidence = (f"{what}: {', '.join(facts)}" for what, facts in found.items() if facts)
    return "no" if differ else "unknown" if unknown else "yes", "; ".join(evidence)


def _quality(comparisons: Sequence[Comparison]) -> Answer:
    labels = {comparison.word for comparison in comparisons}
    answer: ChecklistAnswer = (
        "no" if labels & {VerdictLabel.FAIL, VerdictLabel.MARGINAL} else "unknown"
    )
    if labels == {VerdictLabel.PASS}:
        answer = "yes"
    evidence = (
        f"{c.candidate}: {c.word}"
        + (f", {c.loss:z.2%} ({c.low:z.2%} to {c.high:z.2%})" if math.isfinite(c.loss) else "")
        for c in comparisons
    )
    return answer, "; ".join(evidence)


def _finite(stats: Sequence[TrainingStats]) -> Answer:
    evidence = (
        f"{e.candidate}: {e.skipped} of {e.steps} steps skipped, {e.retried} repeated in FP32, "
        f"{e.nonfinite} with a non-finite loss or norm"
        for e in stats
    )
    # A dynamic loss scale skips some steps while it adapts. NaN in the weights makes every later step NaN.
    bad = any(e.nonfinite > e.skipped + e.retried or e.skipped > _SKIPPED * e.steps for e in stats)
    known = all(e.steps for e in stats)
    return "no" if bad else "yes" if known else "unknown", "; ".join(evidence)


def _gradients(one: TrainingStats) -> tuple[bool | None, str]:
    if one.norm_ratio is None:
        return None, "no norms"
    good = _NORMS[0] <= one.norm_ratio <= _NORMS[1] and not one.norm_zero
    zero = f", {one.norm_zero} steps with zero gradients" if one.norm_zero else ""
    return good, f"{one.norm_ratio:.2f} times the baseline's{zero}"


def _speed(one: TrainingStats, wanted: float) -> tuple[bool | None, str]:
    if one.speed is None or one.speed_low is None or one.speed_high is None:
        return None, "not measured"
    between = f"{one.speed:.2f} times ({one.speed_low:.2f} to {one.speed_high:.2f})"
    if one.speed_low >= wanted:
        return True, between
    return (False if one.speed_high < wanted else None), between


def _memory(one: TrainingStats, limit: int | None) -> tuple[bool | None, str]:
    if one.peak_bytes is None:
        return None, "not measured"
    share = f", {one.memory:.0%} of the baseline's" if one.memory is not None else ""
    good = one.peak_bytes <= limit if limit is not None else None
    return good, f"{format_bytes(one.peak_bytes)}{share}"


def _combine(stats: Iterable[TrainingStats], check: Check) -> Answer:
    """Answer for all candidates: no if any is no, yes if all are yes."""
    found = [(one.candidate, *check(one)) for one in stats]
    goods = [good for _, good, _ in found]
    answer: ChecklistAnswer = "no" if False in goods else "unknown" if None in goods else "yes"
    return answer, "; ".join(f"{name}: {text}" for name, _, text in found)
