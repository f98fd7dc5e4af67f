"""The decision on each candidate: judged once at the end, or in an interim analysis after every seed.

A candidate keeps the verdict of the first analysis that gives it one, together with the evidence of that
analysis. Runs that are added later, for other candidates, cannot withdraw the verdict: that would be one more
analysis than the error rate accounts for. Nor do they enter its interval, which they might contradict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from halfguard.records.verdict import VerdictLabel
from halfguard.validation.judgement.paired_runs import PairedRuns, StudyDesign
from halfguard.validation.judgement.sequential import interim_level, sequential_claims
from halfguard.validation.judgement.statistics import (
    LEVEL,
    MIN_PAIRS,
    Claims,
    claims,
    holm,
    interval,
)


@dataclass(frozen=True)
class CandidateDecision:
    """The label of a candidate, the pairs that it rests on, and p-values without and with correction."""

    label: VerdictLabel
    pairs: PairedRuns
    uncorrected: Claims
    corrected: Claims


def verdict_labels(
    found: Claims, level: float = LEVEL
) -> np.ndarray[tuple[int, ...], np.dtype[np.str_]]:
    """Return the labels for p-values that are already corrected; where two claims hold, the worse one."""
    conditions = [found.fails <= level, found.marginal <= level, found.passes <= level]
    labels = [VerdictLabel.FAIL, VerdictLabel.MARGINAL, VerdictLabel.PASS]
    return np.select(conditions, labels, VerdictLabel.INCONCLUSIVE)


def decide(pairs: Sequence[PairedRuns], design: StudyDesign) -> list[CandidateDecision]:
    """Go through the analyses in order and return the decision on each candidate."""
    analyses: list[list[tuple[PairedRuns, Claims]]] = [[] for _ in pairs]
    decisions: list[CandidateDecision] = []
    for counts in _pair_counts(pairs, design):
        for index, count in enumerate(counts):
            if not decisions or decisions[index].label is VerdictLabel.INCONCLUSIVE:
                part = pairs[index].first(count)
                analyses[index].append((part, _claims(part, design)))
        corrected = Claims(*(holm(np.array([one[-1][1][i] for one in analyses])) for i in range(3)))
        now = [
            _decide_one(one, Claims(*(p[i] for p in corrected))) for i, one in enumerate(analyses)
        ]
        decisions = [
            old if old.label is not VerdictLabel.INCONCLUSIVE else new
            for old, new in zip(decisions or now, now, strict=True)
        ]
    return decisions


def is_measurable(pairs: PairedRuns, design: StudyDesign) -> bool:
    """Return whether a fraction of the baseline's mean is meaningful: not if that mean may be zero."""
    found = interval(
        pairs.baseline, pairs.candidate, design.criteria, interval_level(1, pairs, design)
    )
    return math.isfinite(found.low)


def interval_level(candidates: int, pairs: PairedRuns, design: StudyDesign) -> float:
    """Return the level of one interval such that ``candidates`` of them hold together, in every analysis."""
    level = LEVEL / candidates
    if design.sequential:
        return interim_level(level, len(pairs.seeds), len(design.seeds))
    return level


def _pair_counts(pairs: Sequence[PairedRuns], design: StudyDesign) -> Iterator[tuple[int, ...]]:
    """Yield, for each analysis, how many pairs of each candidate it uses. The last one uses all."""
    seeds = {seed for part in pairs for seed in part.seeds}
    order = [seed for seed in design.seeds if seed in seeds] if design.sequential else []
    counts = [0] * len(pairs)
    for seed in order[:-1]:
        counts = [
            count + (count < len(part.seeds) and part.seeds[count] == seed)
            for count, part in zip(counts, pairs, strict=True)
        ]
        if max(counts) >= MIN_PAIRS:
            yield tuple(counts)
    yield tuple(len(part.seeds) for part in pairs)


def _decide_one(
    analyses: Sequence[tuple[PairedRuns, Claims]], corrected: Claims
) -> CandidateDecision:
    """Decide by the last analysis; the evidence is that of the first one with a p-value as small.

    That is an earlier one if only the verdict on another candidate made this one certain (Holm).
    """
    pairs, uncorrected = analyses[-1]
    label = VerdictLabel.FAIL if pairs.broken else VerdictLabel(str(verdict_labels(corrected)))
    claim = {VerdictLabel.PASS: 0, VerdictLabel.MARGINAL: 1, VerdictLabel.FAIL: 2}.get(label)
    if claim is not None and not pairs.broken:
        pairs = next(part for part, before in analyses if before[claim] <= uncorrected[claim])
    return CandidateDecision(label, pairs, uncorrected, corrected)


def _claims(pairs: PairedRuns, design: StudyDesign) -> Claims:
    nothing = Claims(np.ones(()), np.ones(()), np.ones(()))
    if not pairs.sufficient or pairs.broken or pairs.lost:
        return nothing
    if design.sequential:
        planned = len(design.seeds)
        found = sequential_claims(pairs.baseline, pairs.candidate, design.criteria, planned)
    else:
        found = claims(pairs.baseline, pairs.candidate, design.criteria)
    claimable = min(found) > LEVEL or is_measurable(pairs, design)
    return found if claimable else nothing
