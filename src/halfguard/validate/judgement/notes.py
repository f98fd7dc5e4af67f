"""What a reader of a verdict must know besides: what is missing, what was left out, what to beware of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halfguard.records.study import Study
from halfguard.records.verdict import Comparison, Effort, Word
from halfguard.validate.judgement.pairs import Question, finished, repetitions
from halfguard.validate.judgement.statistics import FEWEST

_PLACE = ("device", "torch", "cuda", "hip", "halfguard")  # what may change numbers


def notes(
    study: Study, question: Question, comparisons: Sequence[Comparison], taken: Sequence[Effort]
) -> Iterator[str]:
    """One sentence for each thing that weakens the verdict, or is part of it unseen."""
    own = [run for run in study.runs if run.candidate == question.baseline]
    unfinished = [str(run.seed) for run in own if not finished(run, question.metric)]
    if unfinished:
        seeds = ", ".join(unfinished)
        yield f"The baseline did not finish with seed {seeds}; such a seed says nothing and is left out."
    repeated = repetitions(own)
    if repeated:
        seeds = ", ".join(map(str, repeated))
        yield (
            f"The run with seed {seeds} is one that was there before, bit for bit, and does not count again: "
            "let the job make its weights and batches from its seed."
        )
    expected = (1 + len(question.candidates)) * len(question.seeds)
    if len(study.runs) < expected and not question.sequential:
        yield f"{len(study.runs)} of {expected} runs are there: the study is not complete."
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
    if any(effort.retried for effort in taken):
        yield "Steps that were repeated in FP32 are part of the result: it is that of 16 bits with its guard."
