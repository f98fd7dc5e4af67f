"""The decision on each candidate: the strongest claim that holds, corrected for the number of candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halfguard.records.verdict import VerdictLabel
from halfguard.validation.judgement.paired_runs import PairedRuns
from halfguard.validation.judgement.statistics import (
    LEVEL,
    Claims,
    Criteria,
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


def decide(pairs: Sequence[PairedRuns], criteria: Criteria) -> list[CandidateDecision]:
    """Return the decision on each candidate."""
    found = [_claims(one, criteria) for one in pairs]
    adjusted = [holm(np.array(p)) for p in zip(*found, strict=True)]
    decisions = []
    for i, one in enumerate(pairs):
        corrected = Claims(*(p[i] for p in adjusted))
        label = VerdictLabel.FAIL if one.broken else VerdictLabel(str(verdict_labels(corrected)))
        decisions.append(CandidateDecision(label, one, found[i], corrected))
    return decisions


def is_measurable(pairs: PairedRuns, criteria: Criteria) -> bool:
    """Return whether a fraction of the baseline's mean is meaningful: not if that mean may be zero."""
    return math.isfinite(interval(pairs.baseline, pairs.candidate, criteria).low)


def _claims(pairs: PairedRuns, criteria: Criteria) -> Claims:
    nothing = Claims(np.ones(()), np.ones(()), np.ones(()))
    if not pairs.sufficient or pairs.broken or pairs.lost:
        return nothing
    found = claims(pairs.baseline, pairs.candidate, criteria)
    claimable = min(found) > LEVEL or is_measurable(pairs, criteria)
    return found if claimable else nothing
