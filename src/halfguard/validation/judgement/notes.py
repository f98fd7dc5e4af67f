"""Notes beside a verdict: what is missing, what was left out, and what limits the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halfguard.records.study import RunResult, Study
from halfguard.records.verdict import Comparison, TrainingStats, VerdictLabel
from halfguard.validation.judgement.paired_runs import StudyDesign, is_finished, repeated_seeds
from halfguard.validation.judgement.statistics import MIN_PAIRS

_ENVIRONMENT_KEYS = ("device", "torch", "cuda", "hip", "halfguard")  # they may change results
_UNFINISHED = {
    "failed": "did not finish with seed {}; such a seed shows nothing and is left out.",
    "budget": "was stopped by the time budget with seed {}; run the study again to finish it.",
    "unfinished": "is not finished with seed {}; such a seed is left out until it has ended.",
    "died": "was lost with seed {} because its worker died; run the study again to finish it.",
}


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
    if done < expected and not design.sequential:
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
                f"Every seed of {comparison.candidate} shows exactly the same loss: the metric is too "
                "coarse, or the seed has no effect. The verdict is worth no more than that of a single run."
            )
    unsure = any(c.word is VerdictLabel.INCONCLUSIVE and c.pairs >= MIN_PAIRS for c in comparisons)
    if unsure and not design.sequential:
        yield (
            "Adding seeds after reading the result is a second analysis: it can double the chance of a wrong "
            "PASS. A study with 'sequential: true', set in advance, accounts for every analysis."
        )
    elif unsure and done == expected:
        yield (
            f"Every analysis of the {len(design.seeds)} planned seeds is accounted for. Seeds beyond the "
            "plan are not: adding them can double the chance of a wrong PASS. Plan in advance for the "
            "largest number of seeds that you can afford."
        )
    if any(one.retried for one in stats):
        yield "Steps repeated in FP32 are part of the result: it holds for 16 bits together with the guard."


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
            f"The run with seed {seeds} repeats an earlier run bit for bit and does not count again: create "
            "the job's weights and batches from its seed."
        )
    else:
        yield (
            f"The baseline's metrics with seed {seeds} equal those of an earlier seed to the last digit and "
            "do not count again: the script ignores its seed, or the metric is too coarse or saturated. If "
            "the seed is used, write a finer number beside the metric, for example the loss: it tells runs "
            "apart."
        )
