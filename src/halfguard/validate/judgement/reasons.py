"""A verdict in words: why, with its numbers, and the way back to FP32."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from halfguard.records.study import RunResult
from halfguard.records.verdict import Comparison, Word
from halfguard.validate.judgement.statistics import FEWEST, Terms


def broken_reason(found: Comparison, first: RunResult, metric: str, baseline: str) -> str:
    """For a candidate that did not finish what the baseline did."""
    value = first.metrics.get(metric, math.nan)
    why = (first.failure or f"{metric} is {value}").splitlines()[0][:200]
    total = len(found.broken) + found.pairs
    return (
        f"{len(found.broken)} of {total} seeds broke where {baseline} finished "
        f"(seed {first.seed}: {why})."
    )


def lost_reason(lost: Sequence[RunResult]) -> str:
    """For a candidate of which runs are missing that nobody chose to leave out."""
    seeds = ", ".join(str(run.seed) for run in lost)
    why = (lost[0].failure or "").splitlines()[0][:200]
    return f"The runs with seed {seeds} were lost with their machines ({why}). Run the study again for them."


def few_reason(found: Comparison) -> str:
    """For a candidate with too few pairs to claim anything."""
    have = {0: "There is no pair of runs yet", 1: "There is only one pair of runs"}
    told = have.get(found.pairs, f"There are only {found.pairs} pairs of runs")
    return f"{told}; from {FEWEST} on, the noise between seeds can be told from a loss."


def written_reason(found: Comparison, terms: Terms, undone: str) -> str:
    """For a candidate with an interval; ``undone`` is what it would be if it were the only candidate."""
    low, high = _share(terms.passing), _share(terms.marginal)
    if not math.isfinite(found.low):
        return (
            "The baseline's mean may be zero, so that a share of it means nothing. Choose a metric whose "
            "zero is far away."
        )
    change = f"a loss of {found.loss:.2%}" if found.loss >= 0 else f"a gain of {-found.loss:.2%}"
    seen = (
        f"{change} over {found.pairs} seeds (between {found.low:.2%} and {found.high:.2%} lost, "
        "with 95% certainty)"
    )
    match found.word:
        case Word.PASS:
            return f"Below {low}: {seen}."
        case Word.MARGINAL:
            return f"Above {low}, below {high}: {seen}."
        case Word.FAIL:
            return f"Above {high}: {seen}."
    return f"The seeds do not tell: {seen}.{_known(found, terms)}{_correction(undone)}{_further(found)}"


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
