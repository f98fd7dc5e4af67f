"""From the runs of a study to its verdict: a pure function, so anyone can repeat it from the files.

Four rules come before the statistics. A candidate fails if one of its runs breaks with a seed that the
baseline finishes, even if its other seeds are good: an average over the other runs would hide the failure.
For the same reason nothing is claimed while one of its runs is lost because its worker died, or was stopped
by the time budget. A seed that the baseline itself did not finish shows nothing about 16 bits; it is left
out, and the verdict says so. A run that repeats an earlier run bit for bit counts once.
"""

from __future__ import annotations

import math

from halfguard.records.study import Study
from halfguard.records.verdict import Comparison, Verdict, VerdictLabel
from halfguard.validation.judgement import reasons
from halfguard.validation.judgement.checklist import checklist
from halfguard.validation.judgement.decisions import (
    CandidateDecision,
    decide,
    interval_level,
    is_measurable,
    verdict_labels,
)
from halfguard.validation.judgement.notes import notes
from halfguard.validation.judgement.paired_runs import (
    PairedRuns,
    StudyDesign,
    pair_runs,
    read_design,
)
from halfguard.validation.judgement.sequential import interim_level
from halfguard.validation.judgement.statistics import (
    LEVEL,
    MIN_PAIRS,
    Criteria,
    interval,
    losses,
    noise,
    seeds_needed,
)
from halfguard.validation.judgement.training_stats import collect_training_stats


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
        sequential=design.sequential,
        planned=len(design.seeds),
        comparisons=comparisons,
        efforts=stats,
        checklist=checklist(study, comparisons, stats, evidence),
        way_back=reasons.way_back(study.spec),
        notes=tuple(notes(study, design, comparisons, stats)),
    )


def all_decided(study: Study) -> bool:
    """Return whether every candidate has a verdict, so that a sequential study can stop."""
    found = _compare(study, read_design(study))
    return all(c.word is not VerdictLabel.INCONCLUSIVE for c in found)


def _compare(study: Study, design: StudyDesign) -> tuple[Comparison, ...]:
    runs = {(run.candidate, run.seed): run for run in study.runs}
    all_pairs = [pair_runs(name, precision, design, runs) for name, precision in design.candidates]
    decisions = decide(all_pairs, design)
    return tuple(
        _comparison(one, len(pairs.seeds) - len(one.pairs.seeds), design)
        for one, pairs in zip(decisions, all_pairs, strict=True)
    )


def _comparison(decision: CandidateDecision, later: int, design: StudyDesign) -> Comparison:
    """Describe a decision; ``later`` counts the pairs that were added after it."""
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
    if pairs.sufficient and is_measurable(pairs, design):
        level, joint_level = (interval_level(n, pairs, design) for n in (1, len(design.candidates)))
        one = interval(baseline, candidate, criteria, level)
        joint = interval(baseline, candidate, criteria, joint_level)
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
    return found.model_copy(update={"reason": _reason(found, decision, later, design)})


def _further_seeds(found: Comparison, pairs: PairedRuns, design: StudyDesign) -> int | None:
    """Return how many seeds to add until a verdict can be expected, if the estimate is right."""
    if found.pairs < MIN_PAIRS:
        useless = pairs.repeated or pairs.failed_baseline is not None
        return None if useless else MIN_PAIRS - found.pairs
    if not math.isfinite(found.low):
        return None
    level = LEVEL / len(design.candidates)
    if design.sequential:
        planned = max(len(design.seeds), found.pairs)
        level = interim_level(level, planned, planned)
    needed = seeds_needed(_distances(found.loss, design.criteria), found.noise, level)
    return None if needed is None else max(1, needed - found.pairs)


def _distances(loss: float, criteria: Criteria) -> list[float]:
    """Return the distances of the estimate from the thresholds next to its verdict."""
    if loss < criteria.passing:
        return [criteria.passing - loss]
    if loss > criteria.marginal:
        return [loss - criteria.marginal]
    return [loss - criteria.passing, criteria.marginal - loss]


def _reason(found: Comparison, decision: CandidateDecision, later: int, design: StudyDesign) -> str:
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
    return reasons.interval_reason(found, design.criteria, uncorrected, later)
