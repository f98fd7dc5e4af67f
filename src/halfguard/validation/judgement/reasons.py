"""A verdict in words: why, with its numbers, and the way back to FP32."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from halfguard.records.study import RunResult
from halfguard.records.verdict import Comparison, Word
from halfguard.validation.judgement.statistics import FEWEST, Terms


def broken_reason(found: Comparison, first: RunResult, metric: str, baseline: str) -> str:
    """For a candidate that did not finish what the baseline did."""
    total = len(found.broken) + found.pairs
    return (
        f"{len(found.broken)} of {total} seeds broke where {baseline} finished "
        f"(seed {first.seed}: {_why(first, metric)})."
    )


def unfounded_reason(first: RunResult, metric: str) -> str:
    """For any candidate of a study whose baseline finished nothing."""
    if first.failure is None:
        cure = "A changed job is run anew."
    elif not first.lost:
        cure = "Mend what made it fail, and run the study again."
    elif first.cause == "budget":
        cure = "Run the study again with more time."
    else:
        cure = "Run the study again."
    return (
        f"{first.candidate} finished with no seed (seed {first.seed}: {_why(first, metric)}), so that there "
        f"is nothing to compare with. {cure}"
    )


def lost_reason(lost: Sequence[RunResult], metric: str) -> str:
    """For a candidate of which runs are missing that nobody chose to leave out."""
    told = []
    for runs, what in (
        ([run for run in lost if run.cause is None], "were lost with their machines"),
        ([run for run in lost if run.cause == "budget"], "had begun, and were cut off"),
    ):
        if runs:
            seeds = ", ".join(str(run.seed) for run in runs)
            told.append(f"The runs with seed {seeds} {what} ({_why(runs[0], metric)}).")
    return f"{' '.join(told)} Run the study again for them."


def few_reason(found: Comparison, repeated: Sequence[int], *, digests: bool) -> str:
    """For a candidate with too few pairs to claim anything."""
    have = {0: "There is no pair of runs yet", 1: "There is only one pair of runs"}
    told = have.get(found.pairs, f"There are only {found.pairs} pairs of runs")
    noise = f"from {FEWEST} on, the noise between seeds can be told from a loss"
    return f"{told}{_again(repeated, digests)}; {noise}."


def _again(repeated: Sequence[int], digests: bool) -> str:
    if not repeated:
        return ""
    seeds = ", ".join(map(str, repeated))
    if digests:
        return f", because seed {seeds} changes nothing in the baseline"
    return (
        f", because the baseline's metrics with seed {seeds} are to the last digit those of an earlier seed: "
        "the seed changes nothing, or the metric is too coarse, or saturated, to show it"
    )


def _why(run: RunResult, metric: str) -> str:
    value = run.metrics.get(metric, math.nan)
    return (run.failure or f"{metric} is {value}").splitlines()[0][:200]


def written_reason(found: Comparison, terms: Terms, undone: str, later: int) -> str:
    """For a candidate with an interval.

    ``undone`` is what it would be if it were the only candidate; ``later`` counts the pairs that came when
    it had its verdict.
    """
    low, high = _share(terms.passing), _share(terms.marginal)
    if not math.isfinite(found.low):
        return (
            "The baseline's mean may be zero, so that a share of it means nothing. Choose a metric whose "
            "zero is far away."
        )
    gained = round(found.loss, 4) < 0  # in the digits that are shown
    change = f"a gain of {-found.loss:.2%}" if gained else f"a loss of {found.loss:z.2%}"
    seen = (
        f"{change} over {found.pairs} seeds (between {found.low:z.2%} and {found.high:z.2%} lost, "
        "with 95% certainty)"
    )
    match found.word:
        case Word.PASS:
            return f"Below {low}: {seen}.{_later(later)}"
        case Word.MARGINAL:
            return f"Above {low}, below {high}: {seen}.{_later(later)}"
        case Word.FAIL:
            return f"Above {high}: {seen}.{_later(later)}"
    return f"The seeds do not tell: {seen}.{_known(found, terms)}{_correction(undone)}{_further(found)}"


def _later(pairs: int) -> str:
    if not pairs:
        return ""
    seeds = "1 seed" if pairs == 1 else f"{pairs} seeds"
    return f" This was certain then; what was run later ({seeds}) is not part of it."


def _share(value: float) -> str:
    return f"{100 * value:.6g}%"


def _known(found: Comparison, terms: Terms) -> str:
    if found.joint_high < terms.marginal:
        return f" It is certain to be below {_share(terms.marginal)}."
    if found.joint_low > terms.passing:
        return f" It is certain to be above {_share(terms.passing)}."
    return ""


def _correction(undone: str) -> str:
    if undone in ("", Word.INCONCLUSIVE):
        return ""
    return f" Alone it would be {undone}; among several candidates that can be luck."


def _further(found: Comparison) -> str:
    if found.further_seeds is None:
        return " The loss is too close to a threshold for any reasonable number of seeds."
    if found.further_seeds == 1:
        return " About 1 further seed should."
    return f" About {found.further_seeds} further seeds should."


def way_back(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """How to return to the baseline's precision: one key, or the command itself."""
    precision = str(spec["baseline"]["precision"])
    command = spec.get("command")
    if command:
        given = {"{precision}": precision, "{seed}": str(spec["seeds"][0]), "{out}": "metrics.json"}
        for hole, value in given.items():
            command = command.replace(hole, shlex.quote(value))
        return (str(command),)
    return (f"precision: {precision}",)
