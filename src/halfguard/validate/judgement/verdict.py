"""From the runs of a study to its verdict: a pure function, so that anybody can repeat it from the files.

Four rules stand above the statistics. A candidate that breaks with a seed which the baseline finishes has
failed, whatever its other seeds say: an average over the survivors would hide it. For the same reason
nothing is claimed while one of its runs is lost with its machine. A seed that the baseline itself did not
finish says nothing about 16 bits; it is left out, and the verdict says so. And a run that repeats an earlier
one bit for bit is not another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from halfguard.records.study import Study
from halfguard.records.verdict import Comparison, Verdict, Word
from halfguard.validate.judgement.checklist import checklist
from halfguard.validate.judgement.effort import efforts
from halfguard.validate.judgement.notes import notes
from halfguard.validate.judgement.pairs import Pairs, Question, pairs_of, question_of
from halfguard.validate.judgement.reasons import (
    broken_reason,
    few_reason,
    lost_reason,
    way_back,
    written_reason,
)
from halfguard.validate.judgement.sequential import claims_so_far, look_level
from halfguard.validate.judgement.statistics import (
    FEWEST,
    LEVEL,
    Claims,
    Terms,
    claims,
    holm,
    interval,
    losses,
    noise,
    seeds_needed,
)


def judge(study: Study) -> Verdict:
    """The verdict on every candidate of a study, also of one that is still being run."""
    question = question_of(study)
    comparisons = _compared(study, question)
    evidence = study.digest()
    taken = efforts(study, question.baseline, [name for name, _ in question.candidates])
    return Verdict(
        study=study.name,
        evidence=evidence,
        metric=question.metric,
        higher_is_better=question.terms.higher_is_better,
        baseline=question.baseline,
        passing=question.terms.passing,
        marginal=question.terms.marginal,
        level=LEVEL,
        sequential=question.sequential,
        planned=len(question.seeds),
        comparisons=comparisons,
        efforts=taken,
        checklist=checklist(study, comparisons, taken, evidence),
        way_back=way_back(study.spec),
        notes=tuple(notes(study, question, comparisons, taken)),
    )


def settled(study: Study) -> bool:
    """Whether every candidate has a verdict: all that a sequential study asks at a look, and cheap."""
    return all(c.word is not Word.INCONCLUSIVE for c in _compared(study, question_of(study)))


def words(found: Claims, level: float = LEVEL) -> np.ndarray[tuple[int, ...], np.dtype[np.str_]]:
    """The verdicts for p-values that are already corrected; where two claims hold, the worse one."""
    conditions = [found.fails <= level, found.marginal <= level, found.passes <= level]
    return np.select(conditions, [Word.FAIL, Word.MARGINAL, Word.PASS], Word.INCONCLUSIVE)


def _compared(study: Study, question: Question) -> tuple[Comparison, ...]:
    runs = {(run.candidate, run.seed): run for run in study.runs}
    pairs = [pairs_of(name, precision, question, runs) for name, precision in question.candidates]
    return tuple(_comparisons(pairs, question))


def _comparisons(pairs: Sequence[Pairs], question: Question) -> Iterator[Comparison]:
    alone = [_claims(part, question) for part in pairs]
    corrected = Claims(*(holm(np.array([found[i] for found in alone])) for i in range(3)))
    for index, (part, before) in enumerate(zip(pairs, alone, strict=True)):
        own = Claims(*(p[index] for p in corrected))
        yield _comparison(part, before, own, question, len(pairs))


def _claims(pairs: Pairs, question: Question) -> Claims:
    silent = not pairs.enough or pairs.broken or pairs.lost
    if silent or not _measurable(pairs, question):
        return Claims(np.ones(()), np.ones(()), np.ones(()))
    if question.sequential:
        planned = len(question.seeds)
        return claims_so_far(pairs.baseline, pairs.candidate, question.terms, planned)
    return claims(pairs.baseline, pairs.candidate, question.terms)


def _measurable(pairs: Pairs, question: Question) -> bool:
    """Whether a share of the baseline's mean means anything: not if that mean may be zero."""
    found = interval(pairs.baseline, pairs.candidate, question.terms, _level(1, pairs, question))
    return math.isfinite(found.low)


def _level(candidates: int, pairs: Pairs, question: Question) -> float:
    """The level of one interval such that ``candidates`` of them hold together, at every look."""
    level = LEVEL / candidates
    if question.sequential:
        return look_level(level, len(pairs.seeds), len(question.seeds))
    return level


def _comparison(
    pairs: Pairs, alone: Claims, corrected: Claims, question: Question, candidates: int
) -> Comparison:
    terms, baseline, candidate = question.terms, pairs.baseline, pairs.candidate
    word = Word.FAIL if pairs.broken else Word(str(words(corrected)))
    found = Comparison(
        candidate=pairs.name,
        precision=pairs.precision,
        word=word,
        reason="",
        pairs=len(pairs.seeds),
        seeds=pairs.seeds,
        broken=tuple(run.seed for run in pairs.broken),
    )
    if pairs.enough and _measurable(pairs, question):
        one = interval(baseline, candidate, terms, _level(1, pairs, question))
        joint = interval(baseline, candidate, terms, _level(candidates, pairs, question))
        lost = losses(baseline, candidate, higher_is_better=terms.higher_is_better)
        found = found.model_copy(
            update={
                "losses": tuple((lost / abs(baseline.mean())).tolist()),
                "baseline_mean": float(baseline.mean()),
                "candidate_mean": float(candidate.mean()),
                "loss": float(one.loss),
                "low": float(one.low),
                "high": float(one.high),
                "joint_low": float(joint.low),
                "joint_high": float(joint.high),
                "noise": float(noise(baseline, candidate, terms)),
                "p_pass": float(corrected.passes),
                "p_marginal": float(corrected.marginal),
                "p_fail": float(corrected.fails),
            }
        )
    if word is Word.INCONCLUSIVE:
        further = len(pairs.lost) or _further(found, question, candidates)
        found = found.model_copy(update={"further_seeds": further})
    return found.model_copy(update={"reason": _reason(found, alone, pairs, question)})


def _further(found: Comparison, question: Question, candidates: int) -> int | None:
    """Seeds until the verdict that the estimate points to can be expected, if the estimate is right."""
    if found.pairs < FEWEST:
        return FEWEST - found.pairs
    if not math.isfinite(found.low):
        return None
    level = LEVEL / candidates
    if question.sequential:
        planned = max(len(question.seeds), found.pairs)
        level = look_level(level, planned, planned)
    needed = seeds_needed(_distances(found.loss, question.terms), found.noise, level)
    return None if needed is None else max(1, needed - found.pairs)


def _distances(loss: float, terms: Terms) -> list[float]:
    """How far the estimate is from the thresholds that its verdict must keep clear of."""
    if loss < terms.passing:
        return [terms.passing - loss]
    if loss > terms.marginal:
        return [loss - terms.marginal]
    return [loss - terms.passing, terms.marginal - loss]


def _reason(found: Comparison, alone: Claims, pairs: Pairs, question: Question) -> str:
    if pairs.broken:
        return broken_reason(found, pairs.broken[0], question.metric, question.baseline)
    if pairs.lost:
        return lost_reason(pairs.lost)
    if not pairs.enough:
        return few_reason(found)
    undone = str(words(alone)) if found.word is Word.INCONCLUSIVE else ""
    return written_reason(found, question.terms, undone)
