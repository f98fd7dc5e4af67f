"""From the runs of a study to its verdict: a pure function, so that anybody can repeat it from the files.

Four rules stand above the statistics. A candidate that breaks with a seed which the baseline finishes has
failed, whatever its other seeds say: an average over the survivors would hide it. For the same reason
nothing is claimed while one of its runs is lost with its machine, or was cut off before its end. A seed that
the baseline itself did not finish says nothing about 16 bits; it is left out, and the verdict says so. And a
run that repeats an earlier one bit for bit is not another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from halfguard.records.study import Study
from halfguard.records.verdict import Comparison, Verdict, Word
from halfguard.validation.judgement.checklist import checklist
from halfguard.validation.judgement.effort import efforts
from halfguard.validation.judgement.notes import notes
from halfguard.validation.judgement.pairs import Pairs, Question, pairs_of, question_of
from halfguard.validation.judgement.reasons import (
    broken_reason,
    few_reason,
    lost_reason,
    unfounded_reason,
    way_back,
    written_reason,
)
from halfguard.validation.judgement.sequential import claims_so_far, look_level
from halfguard.validation.judgement.statistics import (
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


@dataclass(frozen=True)
class _Standing:
    """What is claimed of a candidate, and the pairs that it rests on."""

    word: Word
    pairs: Pairs
    alone: Claims
    corrected: Claims


def _compared(study: Study, question: Question) -> tuple[Comparison, ...]:
    runs = {(run.candidate, run.seed): run for run in study.runs}
    whole = [pairs_of(name, precision, question, runs) for name, precision in question.candidates]
    found = _standings(whole, question)
    return tuple(
        _comparison(one, len(pairs.seeds) - len(one.pairs.seeds), question, len(whole))
        for one, pairs in zip(found, whole, strict=True)
    )


def _standings(pairs: Sequence[Pairs], question: Question) -> list[_Standing]:
    """Look by look: a candidate keeps the verdict of the first look that gives it one.

    It keeps the evidence too. What is run later, for other candidates, can neither take the verdict back,
    which would be a look that was not accounted for, nor stand in an interval that contradicts it.
    """
    seen: list[list[tuple[Pairs, Claims]]] = [[] for _ in pairs]
    found: list[_Standing] = []
    for counts in _looks(pairs, question):
        for index, count in enumerate(counts):
            if not found or found[index].word is Word.INCONCLUSIVE:
                part = pairs[index].first(count)
                seen[index].append((part, _claims(part, question)))
        corrected = Claims(*(holm(np.array([one[-1][1][i] for one in seen])) for i in range(3)))
        now = [_standing(one, Claims(*(p[i] for p in corrected))) for i, one in enumerate(seen)]
        found = [
            old if old.word is not Word.INCONCLUSIVE else new
            for old, new in zip(found or now, now, strict=True)
        ]
    return found


def _looks(pairs: Sequence[Pairs], question: Question) -> Iterator[tuple[int, ...]]:
    """How many pairs of each candidate each look has: all of them, or as many as there were then."""
    seeds = {seed for part in pairs for seed in part.seeds}
    order = [seed for seed in question.seeds if seed in seeds] if question.sequential else []
    counts = [0] * len(pairs)
    for seed in order[:-1]:
        counts = [
            count + (count < len(part.seeds) and part.seeds[count] == seed)
            for count, part in zip(counts, pairs, strict=True)
        ]
        if max(counts) >= FEWEST:
            yield tuple(counts)
    yield tuple(len(part.seeds) for part in pairs)


def _standing(looks: Sequence[tuple[Pairs, Claims]], corrected: Claims) -> _Standing:
    """The verdict at the last of the looks; its evidence is that of the look that showed it best.

    That is an earlier one if only the verdict on another candidate has made this one certain (Holm).
    """
    pairs, alone = looks[-1]
    word = Word.FAIL if pairs.broken else Word(str(words(corrected)))
    claim = {Word.PASS: 0, Word.MARGINAL: 1, Word.FAIL: 2}.get(word)
    if claim is not None and not pairs.broken:
        pairs = next(part for part, before in looks if before[claim] <= alone[claim])
    return _Standing(word, pairs, alone, corrected)


def _claims(pairs: Pairs, question: Question) -> Claims:
    nothing = Claims(np.ones(()), np.ones(()), np.ones(()))
    if not pairs.enough or pairs.broken or pairs.lost:
        return nothing
    if question.sequential:
        planned = len(question.seeds)
        found = claims_so_far(pairs.baseline, pairs.candidate, question.terms, planned)
    else:
        found = claims(pairs.baseline, pairs.candidate, question.terms)
    claimable = min(found) > LEVEL or _measurable(pairs, question)
    return found if claimable else nothing


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


def _comparison(standing: _Standing, later: int, question: Question, candidates: int) -> Comparison:
    """``later`` counts the pairs that came after the verdict."""
    pairs, corrected, word = standing.pairs, standing.corrected, standing.word
    terms, baseline, candidate = question.terms, pairs.baseline, pairs.candidate
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
        further = len(pairs.lost) or _further(found, pairs, question, candidates)
        found = found.model_copy(update={"further_seeds": further})
    return found.model_copy(update={"reason": _reason(found, standing, later, question)})


def _further(found: Comparison, pairs: Pairs, question: Question, candidates: int) -> int | None:
    """Seeds until the verdict that the estimate points to can be expected, if the estimate is right."""
    if found.pairs < FEWEST:
        in_vain = pairs.repeated or pairs.unfounded is not None
        return None if in_vain else FEWEST - found.pairs
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


def _reason(found: Comparison, standing: _Standing, later: int, question: Question) -> str:
    pairs, metric = standing.pairs, question.metric
    if pairs.broken:
        return broken_reason(found, pairs.broken[0], metric, question.baseline)
    if pairs.lost:
        return lost_reason(pairs.lost, metric)
    if pairs.unfounded is not None:
        return unfounded_reason(pairs.unfounded, metric)
    if not pairs.enough:
        return few_reason(found, pairs.repeated, digests=pairs.digests)
    undone = str(words(standing.alone)) if found.word is Word.INCONCLUSIVE else ""
    return written_reason(found, question.terms, undone, later)
