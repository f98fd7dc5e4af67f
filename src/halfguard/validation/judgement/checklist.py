"""The checklist before 16 bits go into production, each line answered from the evidence where it can be.

What no run can answer stays a question to a person, with what is known beside it. "unknown" is an answer: it
says that the study did not measure this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from halfguard.records.sizes import size_text
from halfguard.records.study import RunResult, Study
from halfguard.records.verdict import Answer, CheckItem, Comparison, Effort, Word

_NORMS = (0.5, 2.0)  # medians outside are another training, not noise
_SKIPPED = 0.1  # more than a loss scale that finds its level


def checklist(
    study: Study, comparisons: Sequence[Comparison], efforts: Sequence[Effort], digest: str
) -> tuple[CheckItem, ...]:
    """Every line, in the order in which a reviewer asks; ``digest`` is the study's."""
    own = efforts[1:]
    return (
        _baseline(study),
        _paired(study),
        _quality(comparisons),
        _finite(own),
        _gradients(own),
        _speed(study, own),
        _memory(study, own),
        CheckItem(
            code="documented",
            item="The result is written down, with everything needed to judge it again",
            answer="yes",
            evidence=f"{len(study.runs)} runs, evidence {digest[:12]}",
        ),
        CheckItem(
            code="way-back",
            item="The way back to FP32 is known and is one change",
            answer="yes",
            evidence="printed below",
        ),
        _full_run(study),
        CheckItem(
            code="approved",
            item="Somebody answerable has read the evidence and signed",
            answer="person",
            evidence="halfguard validate approve RUN --by NAME",
        ),
        CheckItem(
            code="watched",
            item="The first production runs are watched, and somebody looks",
            answer="person",
            evidence="a guard with run_dir keeps the journal; halfguard report RUN_DIR draws it",
        ),
    )


def _baseline(study: Study) -> CheckItem:
    name, metric = study.spec["baseline"]["name"], study.spec["metric"]["name"]
    seeds = study.spec["seeds"]
    runs = [run for run in study.runs if run.candidate == name]
    good = [run for run in runs if run.failure is None and metric in run.metrics]
    enough = len(good) == len(seeds) or (
        study.spec.get("sequential") and len(good) == len(runs) > 0
    )
    return CheckItem(
        code="baseline",
        item="The baseline ran to its end with every seed",
        answer="yes" if enough else "no",
        evidence=f"{name}: {len(good)} of {len(seeds)} seeds",
    )


def _paired(study: Study) -> CheckItem:
    """Whether runs of one seed really saw the same: steps, initial weights, order of batches."""
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
    untold: list[str] = []
    for fact, of in facts.items():
        seen = [{of(run) for run in group} for group in groups.values()]
        if any(None in values for values in seen) or not seen:
            untold.append(fact)
        else:
            (same if all(len(values) == 1 for values in seen) else differ).append(fact)
    answer: Answer = "no" if differ else "unknown" if untold else "yes"
    parts = {"the same": same, "NOT the same": differ, "not told by the script": untold}
    told = "; ".join(f"{what}: {', '.join(facts)}" for what, facts in parts.items() if facts)
    return CheckItem(
        code="paired",
        item="Each seed is the same experiment in every precision",
        answer=answer,
        evidence=told,
    )


def _quality(comparisons: Sequence[Comparison]) -> CheckItem:
    words = {comparison.word for comparison in comparisons}
    answer: Answer = "no" if words & {Word.FAIL, Word.MARGINAL} else "unknown"
    if words == {Word.PASS}:
        answer = "yes"
    told = [
        f"{c.candidate}: {c.word}"
        + (f", {c.loss:z.2%} ({c.low:z.2%} to {c.high:z.2%})" if math.isfinite(c.loss) else "")
        for c in comparisons
    ]
    return CheckItem(
        code="quality",
        item="The loss of quality is below the threshold, with its doubt",
        answer=answer,
        evidence="; ".join(told),
    )


def _finite(efforts: Sequence[Effort]) -> CheckItem:
    told = [
        f"{e.candidate}: {e.skipped} of {e.steps} steps skipped, {e.retried} repeated in FP32, "
        f"{e.nonfinite} with a number that is not finite"
        for e in efforts
    ]
    # A dynamic loss scale skips while it finds its level; NaN that was let into the weights never ends.
    bad = any(
        e.nonfinite > e.skipped + e.retried or e.skipped > _SKIPPED * e.steps for e in efforts
    )
    answer: Answer = "no" if bad else "yes" if all(e.steps for e in efforts) else "unknown"
    return CheckItem(
        code="finite",
        item="No NaN or infinity reached the weights, and nine steps in ten were applied",
        answer=answer,
        evidence="; ".join(told),
    )


def _gradients(efforts: Sequence[Effort]) -> CheckItem:
    low, high = _NORMS

    def of(effort: Effort) -> tuple[bool | None, str]:
        if effort.norm_ratio is None:
            return None, "no norms"
        good = low <= effort.norm_ratio <= high and not effort.norm_zero
        zero = f", {effort.norm_zero} steps with none at all" if effort.norm_zero else ""
        return good, f"{effort.norm_ratio:.2f} times the baseline's{zero}"

    return _each("gradients", "Gradient norms are those of the baseline, neither vanishing nor far larger",
                 efforts, of)  # fmt: skip


def _speed(study: Study, efforts: Sequence[Effort]) -> CheckItem:
    wanted = 1 + study.spec["thresholds"].get("speedup", 0.1)

    def of(effort: Effort) -> tuple[bool | None, str]:
        if effort.speed is None or effort.speed_low is None or effort.speed_high is None:
            return None, "not measured"
        between = f"{effort.speed:.2f} times ({effort.speed_low:.2f} to {effort.speed_high:.2f})"
        if effort.speed_low >= wanted:
            return True, between
        return (False if effort.speed_high < wanted else None), between

    return _each("speed", f"It is worth it: at least {wanted:.2f} times as fast", efforts, of)


def _memory(study: Study, efforts: Sequence[Effort]) -> CheckItem:
    limit: int | None = study.spec["thresholds"].get("memory")

    def of(effort: Effort) -> tuple[bool | None, str]:
        if effort.peak_bytes is None:
            return None, "not measured"
        share = f", {effort.memory:.0%} of the baseline's" if effort.memory is not None else ""
        good = effort.peak_bytes <= limit if limit is not None else None
        return good, f"{size_text(effort.peak_bytes)}{share}"

    if limit is None:
        return _each("memory", "Memory (no limit was set in the specification)", efforts, of)
    return _each("memory", f"Memory stays within {size_text(limit)}", efforts, of)


def _each(
    code: str, item: str, efforts: Iterable[Effort], of: Callable[[Effort], tuple[bool | None, str]]
) -> CheckItem:
    """One line over all candidates: no if one says no, yes if all say yes."""
    found = [(effort.candidate, *of(effort)) for effort in efforts]
    goods = [good for _, good, _ in found]
    answer: Answer = "no" if False in goods else "unknown" if None in goods else "yes"
    told = "; ".join(f"{name}: {text}" for name, _, text in found)
    return CheckItem(code=code, item=item, answer=answer, evidence=told)


def _full_run(study: Study) -> CheckItem:
    steps = max((run.steps for run in study.runs), default=0)
    return CheckItem(
        code="full-run",
        item="One training run of full length was made in 16 bits",
        answer="person",
        evidence=f"the longest run of this study has {steps or 'an unknown number of'} steps",
    )
