"""The reason for each verdict as a sentence with its numbers, and how to return to FP32."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from halfguard.records.study import RunResult
from halfguard.records.verdict import Comparison, VerdictLabel
from halfguard.validation.judgement.statistics import MIN_PAIRS, Criteria


def broken_reason(found: Comparison, first: RunResult, metric: str, baseline: str) -> str:
    """Explain a FAIL by a run that broke with a seed that the baseline finished."""
    total = len(found.broken) + found.pairs
    return (
        f"{len(found.broken)} of {total} seeds broke where {baseline} finished "
        f"(seed {first.seed}: {_why(first, metric)})."
    )


def no_baseline_reason(first: RunResult, metric: str) -> str:
    """Explain that the baseline finished no seed."""
    if first.failure is None:
        cure = "Change the job: it is then run again."
    elif not first.lost:
        cure = "Fix the cause and run the study again."
    elif first.cause == "budget":
        cure = "Run the study again with more time."
    elif first.cause == "unfinished":
        cure = "Compare again when it has ended."
    else:
        cure = "Run the study again."
    return (
        f"{first.candidate} did not finish any seed (seed {first.seed}: {_why(first, metric)}), so there is "
        f"nothing to compare with. {cure}"
    )


def missing_runs_reason(lost: Sequence[RunResult], metric: str) -> str:
    """Explain that runs were lost or stopped by the time budget, or that their logs have no end."""
    sentences = []
    for runs, what in (
        ([run for run in lost if run.cause is None], "were lost"),
        ([run for run in lost if run.cause == "budget"], "were stopped by the time budget"),
        ([run for run in lost if run.cause == "unfinished"], "are not finished"),
    ):
        if runs:
            seeds = ", ".join(str(run.seed) for run in runs)
            sentences.append(f"The runs with seed {seeds} {what} ({_why(runs[0], metric)}).")
    logged = all(run.cause == "unfinished" for run in lost)
    cure = (
        "Compare again when they have ended." if logged else "Run the study again to finish them."
    )
    return f"{' '.join(sentences)} {cure}"


def too_few_reason(found: Comparison, repeated: Sequence[int], *, has_digests: bool) -> str:
    """Explain that there are too few pairs to claim anything."""
    have = {0: "There is no pair of runs yet", 1: "There is only one pair of runs"}
    text = have.get(found.pairs, f"There are only {found.pairs} pairs of runs")
    seeds = ", ".join(map(str, repeated))
    if seeds and has_digests:
        text += f", because seed {seeds} changes nothing in the baseline"
    elif seeds:
        text += (
            f", because the baseline's metrics with seed {seeds} equal those of an earlier seed to the last "
            "digit: the seed has no effect, or the metric is too coarse or saturated to show it"
        )
    return f"{text}; at least {MIN_PAIRS} are needed to tell a loss from noise between seeds."


def _why(run: RunResult, metric: str) -> str:
    value = run.metrics.get(metric, math.nan)
    return (run.failure or f"{metric} is {value}").splitlines()[0][:200]


def interval_reason(found: Comparison, criteria: Criteria, uncorrected: str, later: int) -> str:
    """Explain the verdict on a candidate by the interval of its loss.

    ``uncorrected`` is the verdict it would have as the only candidate; ``later`` counts the pairs that were
    added after its verdict.
    """
    low, high = (f"{100 * value:.6g}%" for value in (criteria.passing, criteria.marginal))
    if not math.isfinite(found.low):
        return (
            "The baseline's mean may be zero, so a fraction of it is not meaningful. Choose a metric that "
            "is far from zero."
        )
    gained = round(found.loss, 4) < 0  # in the digits that are shown
    change = f"a gain of {-found.loss:.2%}" if gained else f"a loss of {found.loss:z.2%}"
    estimate = (
        f"{change} over {found.pairs} seeds (95% confidence interval of the loss: {found.low:z.2%} to "
        f"{found.high:z.2%})"
    )
    claims = {
        VerdictLabel.PASS: f"Below {low}",
        VerdictLabel.MARGINAL: f"Above {low}, below {high}",
        VerdictLabel.FAIL: f"Above {high}",
    }
    sentences = [f"{claims.get(found.word, 'No claim is possible yet')}: {estimate}."]
    if found.word in claims:
        seeds = "1 seed" if later == 1 else f"{later} seeds"
        note = f"The verdict was reached at that point; later runs ({seeds}) are not part of it."
        return " ".join([*sentences, note] if later else sentences)
    if found.joint_high < criteria.marginal:
        sentences.append(f"The loss is below {high} with 95% confidence.")
    elif found.joint_low > criteria.passing:
        sentences.append(f"The loss is above {low} with 95% confidence.")
    if uncorrected != VerdictLabel.INCONCLUSIVE:
        sentences.append(
            f"Alone it would be {uncorrected}; with several candidates, it can be chance."
        )
    further = found.further_seeds
    seeds = "1 further seed" if further == 1 else f"{further} further seeds"
    close = "The loss is too close to a threshold to decide with a reasonable number of seeds."
    return " ".join([*sentences, close if further is None else f"About {seeds} should decide."])


def way_back(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the change that restores the baseline's precision: one key, or the command itself."""
    precision = str(spec["baseline"]["precision"])
    command = spec.get("command")
    if command:
        seed = str(spec["seeds"][0])
        values = {"{precision}": precision, "{seed}": seed, "{out}": "metrics.json"}
        for placeholder, value in values.items():
            command = command.replace(placeholder, shlex.quote(value))
        return (str(command),)
    return (f"precision: {precision}",)
