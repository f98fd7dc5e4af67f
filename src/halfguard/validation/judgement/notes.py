"""What a reader of a verdict must know besides: what is missing, what was left out, what to beware of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halfguard.records.study import RunResult, Study
from halfguard.records.verdict import Comparison, Effort, Word
from halfguard.validation.judgement.pairs import Question, finished, repetitions
from halfguard.validation.judgement.statistics import FEWEST

_PLACE = ("device", "torch", "cuda", "hip", "halfguard")  # what may change numbers


def notes(
    study: Study, question: Question, comparisons: Sequence[Comparison], taken: Sequence[Effort]
) -> Iterator[str]:
    """One sentence for each thing that weakens the verdict, or is part of it unseen."""
    own = [run for run in study.runs if run.candidate == question.baseline]
    yield from _unfinished(own, question.metric)
    yield from _repeated(own, question.metric)
    there = sum(not run.lost for run in study.runs)
    expected = (1 + len(question.candidates)) * len(question.seeds)
    if there < expected and not question.sequential:
        yield f"{there} of {expected} runs are there: the study is not complete."
    places = {
        tuple(run.environment.get(fact) for fact in _PLACE) for run in study.runs if run.environment
    }
    if len(places) > 1:
        told = "; ".join(sorted(", ".join(fact for fact in place if fact) for place in places))
        yield f"Not all runs were made on the same device with the same software ({told})."
    for comparison in comparisons:
        if comparison.pairs >= FEWEST and comparison.noise == 0:
            yield (
                f"All seeds of {comparison.candidate} lose exactly the same: the metric is too coarse, "
                "or the seed changes nothing. The verdict is worth as little as one run."
            )
    unsure = any(c.word is Word.INCONCLUSIVE and c.pairs >= FEWEST for c in comparisons)
    if unsure and not question.sequential:
        yield (
            "Adding seeds to a study that was looked at is a second look: it can double the chance of a "
            "wrong PASS. With 'sequential: true', set beforehand, every look is accounted for."
        )
    elif unsure and there == expected:
        yield (
            f"Every look at the {len(question.seeds)} planned seeds is accounted for, further seeds are not: "
            "going on beyond the plan can double the chance of a wrong PASS. Set beforehand the most seeds "
            "that you would pay for."
        )
    if any(effort.retried for effort in taken):
        yield "Steps that were repeated in FP32 are part of the result: it is that of 16 bits with its guard."


def _unfinished(baseline: Sequence[RunResult], metric: str) -> Iterator[str]:
    """Seeds without a baseline: those that it broke stay so, the others can still be had."""
    without = [run for run in baseline if not finished(run, metric)]
    for runs, what in (
        (
            [run for run in without if not run.lost],
            "did not finish with seed {}; such a seed says nothing and is left out.",
        ),
        (
            [run for run in without if run.lost and run.cause == "budget"],
            "was cut off with seed {}; run the study again for it.",
        ),
        (
            [run for run in without if run.lost and run.cause is None],
            "was lost with its machine with seed {}; run the study again for it.",
        ),
    ):
        if runs:
            yield f"The baseline {what.format(', '.join(str(run.seed) for run in runs))}"


def _repeated(baseline: Sequence[RunResult], metric: str) -> Iterator[str]:
    repeated = repetitions(baseline, metric)
    if not repeated:
        return
    seeds = ", ".join(map(str, repeated))
    if all(run.initial_weights is not None for run in baseline):
        yield (
            f"The run with seed {seeds} is one that was there before, bit for bit, and does not count again: "
            "let the job make its weights and batches from its seed."
        )
    else:
        yield (
            f"The baseline's metrics with seed {seeds} are those of an earlier seed to the last digit, and "
            "do not count again: the script ignores its seed, or the metric is too coarse or saturated. "
            "If the seed is used, write a finer number beside the metric, its loss perhaps: that tells runs "
            "apart."
        )
