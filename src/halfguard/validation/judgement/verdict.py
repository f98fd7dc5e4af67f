"""From the runs of a study to its verdict: a pure function, so anyone can repeat it from the files.

Four rules come before the statistics. A candidate fails if one of its runs breaks with a seed that the
baseline finishes, even if its other seeds are good: an average over the other runs would hide the failure.
For the same reason nothing is claimed while one of its runs is lost because its worker died, or was stopped
by the time budget. A seed that the baseline itself did not finish shows nothing about 16 bits; it is left
out, and the verdict says so. A run that repeats an earlier run bit for bit counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halfguard.records.study import (
    Comparison,
    RunResult,
    Study,
    TrainingStats,
    Verdict,
    VerdictLabel,
)
from halfguard.validation.judgement import reasons
from halfguard.validation.judgement.checklist import checklist
from halfguard.validation.judgement.paired_runs import (
    PairedRuns,
    StudyDesign,
    pair_runs,
    read_design,
)
from halfguard.validation.judgement.reasons import notes
from halfguard.validation.judgement.statistics import (
    LEVEL,
    MIN_PAIRS,
    Claims,
    Criteria,
    Floats,
    claims,
    holm,
    interval,
    losses,
    noise,
    seeds_needed,
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


def judge(study: Study) -> Verdict:
    """Return the verdict on every candidate of a study, finished or still running."""
    design = read_design(study)
    comparisons = _compare(study, design)
    evidence = study.digest()
    stats = collect_training_stats(study, design.baseline, [name for name, _ in design.candidates])
    return Verdict(
        study=study.name,
        evidence=evidence,
        metric=design.metric,
        higher_is_better=design.criteria.higher_is_better,
        baseline=design.baseline,
        passing=design.criteria.passing,
        marginal=design.criteria.marginal,
        level=LEVEL,
        planned=len(design.seeds),
        comparisons=comparisons,
        efforts=stats,
        checklist=checklist(study, comparisons, stats, evidence),
        way_back=reasons.way_back(study.spec),
        notes=tuple(notes(study, design, comparisons, stats)),
    )


def _compare(study: Study, design: StudyDesign) -> tuple[Comparison, ...]:
    runs = {(run.candidate, run.seed): run for run in study.runs}
    pairs = [pair_runs(name, precision, design, runs) for name, precision in design.candidates]
    return tuple(_comparison(one, design) for one in decide(pairs, design.criteria))


def _comparison(decision: CandidateDecision, design: StudyDesign) -> Comparison:
    pairs, corrected = decision.pairs, decision.corrected
    criteria, baseline, candidate = design.criteria, pairs.baseline, pairs.candidate
    found = Comparison(
        candidate=pairs.name,
        precision=pairs.precision,
        word=decision.label,
        reason="",
        pairs=len(pairs.seeds),
        seeds=pairs.seeds,
        broken=tuple(run.seed for run in pairs.broken),
    )
    if pairs.sufficient and is_measurable(pairs, criteria):
        one = interval(baseline, candidate, criteria)
        joint = interval(baseline, candidate, criteria, LEVEL / len(design.candidates))
        lost = losses(baseline, candidate, higher_is_better=criteria.higher_is_better)
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
                "noise": float(noise(baseline, candidate, criteria)),
                "p_pass": float(corrected.passes),
                "p_marginal": float(corrected.marginal),
                "p_fail": float(corrected.fails),
            }
        )
    if decision.label is VerdictLabel.INCONCLUSIVE:
        further = len(pairs.lost) or _further_seeds(found, pairs, design)
        found = found.model_copy(update={"further_seeds": further})
    return found.model_copy(update={"reason": _reason(found, decision, design)})


def _further_seeds(found: Comparison, pairs: PairedRuns, design: StudyDesign) -> int | None:
    """Return how many seeds to add until a verdict can be expected, if the estimate is right."""
    if found.pairs < MIN_PAIRS:
        useless = pairs.repeated or pairs.failed_baseline is not None
        return None if useless else MIN_PAIRS - found.pairs
    if not math.isfinite(found.low):
        return None
    level = LEVEL / len(design.candidates)
    needed = seeds_needed(_distances(found.loss, design.criteria), found.noise, level)
    return None if needed is None else max(1, needed - found.pairs)


def _distances(loss: float, criteria: Criteria) -> list[float]:
    """Return the distances of the estimate from the thresholds next to its verdict."""
    if loss < criteria.passing:
        return [criteria.passing - loss]
    if loss > criteria.marginal:
        return [loss - criteria.marginal]
    return [loss - criteria.passing, criteria.marginal - loss]


def _reason(found: Comparison, decision: CandidateDecision, design: StudyDesign) -> str:
    pairs, metric = decision.pairs, design.metric
    if pairs.broken:
        return reasons.broken_reason(found, pairs.broken[0], metric, design.baseline)
    if pairs.lost:
        return reasons.missing_runs_reason(pairs.lost, metric)
    if pairs.failed_baseline is not None:
        return reasons.no_baseline_reason(pairs.failed_baseline, metric)
    if not pairs.sufficient:
        return reasons.too_few_reason(found, pairs.repeated, has_digests=pairs.has_digests)
    uncorrected = str(verdict_labels(decision.uncorrected))
    return reasons.interval_reason(found, design.criteria, uncorrected)


def collect_training_stats(
    study: Study, baseline: str, candidates: Sequence[str]
) -> tuple[TrainingStats, ...]:
    """Return the baseline's statistics, then each candidate's in the order of the specification."""
    by_arm = {
        name: [run for run in study.runs if run.candidate == name]
        for name in (baseline, *candidates)
    }
    return tuple(_stats(name, runs, by_arm[baseline], study) for name, runs in by_arm.items())


def _stats(
    name: str, runs: list[RunResult], baseline: list[RunResult], study: Study
) -> TrainingStats:
    measured = (one for one in study.speeds if one.candidate == name and not one.lost)
    speed = next(measured, None)
    peak, baseline_peak = _peak(runs), _peak(baseline)
    norms = _concatenated([run.curve.grad_norm for run in runs])
    loss = _concatenated([run.curve.loss for run in runs])
    scales = _concatenated([run.curve.scale for run in runs])
    ratios = _norm_ratios(runs, baseline)
    finite = norms[np.isfinite(norms)]
    return TrainingStats(
        candidate=name,
        speed=speed.ratio if speed else None,
        speed_low=speed.low if speed else None,
        speed_high=speed.high if speed else None,
        peak_bytes=peak,
        memory=peak / baseline_peak if peak is not None and baseline_peak else None,
        steps=sum(run.steps for run in runs),
        skipped=sum(run.skipped for run in runs),
        retried=sum(run.retried for run in runs),
        nonfinite=int(np.count_nonzero(~(np.isfinite(norms) & np.isfinite(loss)))),
        norm_ratio=float(np.median(ratios)) if ratios.size else None,
        norm_largest=float(finite.max()) if finite.size else None,
        norm_zero=int(np.count_nonzero(norms == 0)),
        scale_low=float(scales.min()) if scales.size else None,
        scale_high=float(scales.max()) if scales.size else None,
    )


def _peak(runs: Sequence[RunResult]) -> int | None:
    return max((run.peak_bytes for run in runs if run.peak_bytes is not None), default=None)


def _concatenated(parts: Sequence[tuple[float, ...]]) -> Floats:
    return np.array([value for part in parts for value in part], np.float64)


def _norm_ratios(runs: Sequence[RunResult], baseline: Sequence[RunResult]) -> Floats:
    """Return gradient norms over the baseline's at the same step and seed, where both are finite."""
    baseline_curves = {run.seed: run.curve for run in baseline}
    ratios = []
    for run in runs:
        other = baseline_curves.get(run.seed)
        if other is None:
            continue
        _, here, there = np.intersect1d(run.curve.steps, other.steps, return_indices=True)
        own = np.array(run.curve.grad_norm, np.float64)[here]
        base = np.array(other.grad_norm, np.float64)[there]
        both = np.isfinite(own) & np.isfinite(base) & (base > 0)
        ratios.append(own[both] / base[both])
    return np.concatenate(ratios) if ratios else np.array([])
