"""Speed, memory, skipped steps and gradient norms, from the same runs as the verdict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from halfguard.records.study import RunResult, Study
from halfguard.records.verdict import TrainingStats
from halfguard.validation.judgement.statistics import Floats


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
