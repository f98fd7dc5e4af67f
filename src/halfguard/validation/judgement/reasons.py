"""The reason for each verdict as a sentence with its numbers, notes beside it, and how to return to FP32."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halfguard.records.study import Comparison, RunResult, Study, TrainingStats, VerdictLabel
from halfguard.validation.judgement.paired_runs import StudyDesign, is_finished, repeated_seeds
from halfguard.validation.judgement.statistics import MIN_PAIRS, Criteria

_ENVIRONMENT_KEYS = ("device", "torch", "cuda", "hip", "halfguard")  # they may change results
_UNFINISHED = {
    "failed": "did not finish with seed {}, so this seed is excluded.",
    "budget": "ran out of time with seed {}. Run the study again to finish it.",
    "unfinished": "has not finished with seed {}, so this seed is excluded until the run ends.",
    "died": "was lost with seed {} because its worker died. Run the study again to finish it.",
}


def broken_reason(found: Comparison, first: RunResult, metric: str, baseline: str) -> str:
    """Explain a FAIL by a run that broke with a seed that the baseline finished."""
    total = len(found.broken) + found.pairs
    return (
        f"{len(found.broken)} of {total} runs failed although {baseline} finished with the same seed (seed "
        f"{first.seed}: {_why(first, metric)})."
    )


def no_baseline_reason(first: RunResult, metric: str) -> str:
    """Explain that the baseline finished no seed."""
    if first.failure is None:
        cure = "Change the job; the study then runs it again."
    elif not first.lost:
        cure = "Fix the cause and run the study again."
    elif first.cause == "budget":
        cure = "Run the study again with more time."
    elif first.cause == "unfinished":
        cure = "Compare again when the run has ended."
    else:
        cure = "Run the study again."
    return (
        f"{first.candidate} did not finish a run with any seed (seed {first.seed}: "
        f"{_why(first, metric)}), so there is nothing to compare with. {cure}"
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
        "Compare again when the runs have ended."
        if logged
        else "Run the study again to finish them."
    )
    return f"{' '.join(sentences)} {cure}"


def too_few_reason(found: Comparison, repeated: Sequence[int], *, has_digests: bool) -> str:
    """Explain that there are too few pairs to claim anything."""
    have = {0: "There is no pair of runs yet", 1: "There is only one pair of runs"}
    text = have.get(found.pairs, f"There are only {found.pairs} pairs of runs")
    seeds = ", ".join(map(str, repeated))
    if seeds and has_digests:
        text += f" because seed {seeds} does not change the baseline"
    elif seeds:
        text += (
            f" because the baseline's metrics with seed {seeds} equal those of an earlier seed to the last "
            "digit: the seed has no effect, or the metric is too coarse or saturated"
        )
    return f"{text}; at least {MIN_PAIRS} are needed to distinguish a degradation from noise between seeds."


def _why(run: RunResult, metric: str) -> str:
    value = run.metrics.get(metric, math.nan)
    return (run.failure or f"{metric} is {value}").splitlines()[0][:200]


def interval_reason(found: Comparison, criteria: Criteria, uncorrected: str) -> str:
    """Explain the verdict on a candidate by the interval of its loss.

    ``uncorrected`` is the verdict it would have as the only candidate.
    """
    low, high = (f"{100 * value:.6g}%" for value in (criteria.passing, criteria.marginal))
    if not math.isfinite(found.low):
        return (
            "The baseline's mean may be zero, so a fraction of it is not meaningful. Choose a metric that "
            "is far from zero."
        )
    gained = round(found.loss, 4) < 0  # in the digits that are shown
    change = f"{-found.loss:.2%} better" if gained else f"{found.loss:z.2%} worse"
    estimate = (
        f"{change} over {found.pairs} seeds (95% confidence interval: {found.low:z.2%} to "
        f"{found.high:z.2%})"
    )
    claims = {
        VerdictLabel.PASS: f"Below {low}",
        VerdictLabel.MARGINAL: f"Above {low}, below {high}",
        VerdictLabel.FAIL: f"Above {high}",
    }
    sentences = [f"{claims.get(found.word, 'No claim is possible yet')}: {estimate}."]
    if found.word in claims:
        return sentences[0]
    if found.joint_high < criteria.marginal:
        sentences.append(f"The degradation is below {high} with 95% confidence.")
    elif found.joint_low > criteria.passing:
        sentences.append(f"The degradation is above {low} with 95% confidence.")
    if uncorrected != VerdictLabel.INCONCLUSIVE:
        sentences.append(
            f"On its own it would be {uncorrected}, but with several candidates this can be chance."
        )
    further = found.further_seeds
    seeds = "1 further seed" if further == 1 else f"{further} further seeds"
    close = (
        "The degradation is too close to a threshold to decide with a reasonable number of seeds."
    )
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


def notes(
    study: Study,
    design: StudyDesign,
    comparisons: Sequence[Comparison],
    stats: Sequence[TrainingStats],
) -> Iterator[str]:
    """Yield one note for each fact that limits the verdict or is hidden in it."""
    baseline = [run for run in study.runs if run.candidate == design.baseline]
    yield from _unfinished(baseline, design.metric)
    yield from _repeated(baseline, design.metric)
    done = sum(not run.lost for run in study.runs)
    expected = (1 + len(design.candidates)) * len(design.seeds)
    if done < expected:
        yield f"The study is incomplete: {done} of {expected} runs have a result."
    environments = {
        tuple(run.environment.get(key) for key in _ENVIRONMENT_KEYS)
        for run in study.runs
        if run.environment
    }
    if len(environments) > 1:
        listed = "; ".join(sorted(", ".join(fact for fact in one if fact) for one in environments))
        yield f"Not all runs used the same device and software ({listed})."
    for comparison in comparisons:
        if comparison.pairs >= MIN_PAIRS and comparison.noise == 0:
            yield (
                f"Every seed of {comparison.candidate} shows exactly the same degradation: the "
                "metric is too coarse, or the seed has no effect. The verdict is no stronger than "
                "the verdict of a single run."
            )
    unsure = any(c.word is VerdictLabel.INCONCLUSIVE and c.pairs >= MIN_PAIRS for c in comparisons)
    if unsure:
        yield (
            "Adding seeds after reading the result is a second analysis: it can double the chance of a wrong "
            "PASS. Plan in advance for as many seeds as you can afford."
        )
    if any(one.retried for one in stats):
        yield "Steps repeated in FP32 are part of the result: it holds for 16-bit training with the guard."


def _unfinished(baseline: Sequence[RunResult], metric: str) -> Iterator[str]:
    """Yield notes on seeds without a baseline: failed ones stay out, lost ones can be run again."""
    seeds: dict[str, list[str]] = {}
    for run in baseline:
        if not is_finished(run, metric):
            why = (run.cause or "died") if run.lost else "failed"
            seeds.setdefault(why, []).append(str(run.seed))
    for cause, text in _UNFINISHED.items():
        if cause in seeds:
            yield f"The baseline {text.format(', '.join(seeds[cause]))}"


def _repeated(baseline: Sequence[RunResult], metric: str) -> Iterator[str]:
    repeated = repeated_seeds(baseline, metric)
    if not repeated:
        return
    seeds = ", ".join(map(str, repeated))
    if all(run.initial_weights is not None for run in baseline):
        yield (
            f"The run with seed {seeds} repeats an earlier run bit for bit and is not counted. Create the "
            "job's weights and batches from its seed."
        )
    else:
        yield (
            f"The baseline's metrics with seed {seeds} equal those of an earlier seed to the last digit and "
            "are not counted: the script ignores its seed, or the metric is too coarse or saturated. If "
            "the seed is used, log a finer value next to the metric, such as the loss, to distinguish the "
            "runs."
        )
