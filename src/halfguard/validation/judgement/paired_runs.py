"""The design of a study, and its runs as pairs: each candidate's run beside the baseline's of that seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from halfguard.errors import RecordError
from halfguard.records.study import RunResult, Study
from halfguard.validation.judgement.statistics import MIN_PAIRS, Criteria, Floats

_TIMING_NAMES = ("time", "second", "duration", "throughput", "speed", "flops")  # in a metric's name


@dataclass(frozen=True)
class StudyDesign:
    """The part of the specification that the verdict depends on."""

    baseline: str
    candidates: tuple[tuple[str, str], ...]  # name and precision
    metric: str
    criteria: Criteria
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class PairedRuns:
    """Metrics of the seeds that both baseline and candidate finished, and the seeds that are missing."""

    name: str
    precision: str
    seeds: tuple[int, ...]
    baseline: Floats
    candidate: Floats
    broken: tuple[RunResult, ...]
    lost: tuple[RunResult, ...]  # the machine failed or the time budget ended: nothing is claimed
    repeated: tuple[int, ...]  # seeds that both finished, but whose run repeats an earlier one
    has_digests: bool  # of weights and batches, in every run of the baseline
    failed_baseline: RunResult | None  # the baseline's first run, if it finished none

    @property
    def sufficient(self) -> bool:
        """Return whether there are enough pairs to claim anything."""
        return len(self.seeds) >= MIN_PAIRS


def read_design(study: Study) -> StudyDesign:
    """Read the design from a study's specification."""
    try:
        spec = study.spec
        limits = spec["thresholds"]
        return StudyDesign(
            baseline=spec["baseline"]["name"],
            candidates=tuple((arm["name"], arm["precision"]) for arm in spec["candidates"]),
            metric=spec["metric"]["name"],
            criteria=Criteria(
                limits["pass"], limits["marginal"], spec["metric"]["higher_is_better"]
            ),
            seeds=tuple(spec["seeds"]),
        )
    except (KeyError, TypeError) as error:
        raise RecordError(
            f"The study {study.name!r} cannot be judged: {error} is missing from its specification."
        ) from error


def is_finished(run: RunResult | None, metric: str) -> bool:
    """Return whether a run ended without a failure and with a finite metric."""
    return (
        run is not None and run.failure is None and math.isfinite(run.metrics.get(metric, math.nan))
    )


def repeated_seeds(baseline: Sequence[RunResult], metric: str) -> tuple[int, ...]:
    """Return seeds whose run repeats an earlier one: the same weights, batches, losses and metrics.

    A repeated run adds no evidence. Counted as a seed, it would make the noise look smaller than it is. A
    script reports only its metrics, and coarse metrics can be equal by chance. Leaving those runs out would
    give rare values the same weight as frequent ones. So for scripts, runs count as repeated only if the
    metrics of all runs are equal to the last digit: then the seed changes nothing, or the metrics are too
    coarse to show it.
    """
    done = [run for run in baseline if is_finished(run, metric)]
    seen: set[str] = set()
    repeated: list[int] = []
    for run in done:
        identity = _identity(run)
        if identity in seen:
            repeated.append(run.seed)
        seen.add(identity)
    certain = all(run.initial_weights is not None for run in done)
    return tuple(repeated) if certain or len(seen) == 1 else ()


def _identity(run: RunResult) -> str:
    """Return what distinguishes runs, without durations; as text, so that NaN equals NaN."""
    metrics = {
        name: value
        for name, value in sorted(run.metrics.items())
        if not any(word in name.lower() for word in _TIMING_NAMES)
    }
    return repr((run.initial_weights, run.batch_order, run.curve.loss, metrics))


def pair_runs(
    name: str,
    precision: str,
    design: StudyDesign,
    runs: Mapping[tuple[str, int], RunResult],
) -> PairedRuns:
    """Sort the seeds that the baseline finished by the result of the candidate's run."""
    seeds: list[int] = []
    broken: list[RunResult] = []
    lost: list[RunResult] = []
    repeated: list[int] = []
    base = [run for (arm, _), run in runs.items() if arm == design.baseline]
    baseline_repeated = repeated_seeds(base, design.metric)
    for seed in design.seeds:
        own = runs.get((name, seed))
        if own is None or not is_finished(runs.get((design.baseline, seed)), design.metric):
            continue
        if is_finished(own, design.metric):
            (repeated if seed in baseline_repeated else seeds).append(seed)
        else:
            (lost if own.lost else broken).append(own)

    def metrics(arm: str) -> Floats:
        return np.array([runs[arm, seed].metrics[design.metric] for seed in seeds])

    any_finished = any(is_finished(run, design.metric) for run in base)

    return PairedRuns(
        name=name,
        precision=precision,
        seeds=tuple(seeds),
        baseline=metrics(design.baseline),
        candidate=metrics(name),
        broken=tuple(broken),
        lost=tuple(lost),
        repeated=tuple(repeated),
        has_digests=all(run.initial_weights is not None for run in base),
        failed_baseline=base[0] if base and not any_finished else None,
    )
