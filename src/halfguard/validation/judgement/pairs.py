"""What a study asks, and which of its runs belong together: the pairs of each candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from halfguard.errors import RecordError
from halfguard.records.study import RunResult, Study
from halfguard.validation.judgement.statistics import FEWEST, Floats, Terms

_OF_CLOCKS = ("time", "second", "duration", "throughput", "speed", "flops")  # in names of metrics


@dataclass(frozen=True)
class Question:
    """What the specification asks."""

    baseline: str
    candidates: tuple[tuple[str, str], ...]  # name and precision
    metric: str
    terms: Terms
    seeds: tuple[int, ...]
    sequential: bool


@dataclass(frozen=True)
class Pairs:
    """What one candidate offers: the metrics of the seeds that both finished, and why there are no more."""

    name: str
    precision: str
    seeds: tuple[int, ...]
    baseline: Floats
    candidate: Floats
    broken: tuple[RunResult, ...]
    lost: tuple[RunResult, ...]  # by machine or budget: nothing is known, so nothing is claimed
    repeated: tuple[int, ...]  # seeds that both finished, but that are no further evidence
    digests: bool  # whether runs say which weights and batches they had
    unfounded: RunResult | None  # the baseline's first run, if the baseline finished none

    @property
    def enough(self) -> bool:
        """Whether anything may be claimed from them."""
        return len(self.seeds) >= FEWEST

    def first(self, count: int) -> Pairs:
        """The pairs of the first seeds; what broke or was lost stays known."""
        return replace(
            self,
            seeds=self.seeds[:count],
            baseline=self.baseline[:count],
            candidate=self.candidate[:count],
        )


def question_of(study: Study) -> Question:
    """The specification, as far as the verdict needs it."""
    try:
        spec = study.spec
        limits = spec["thresholds"]
        return Question(
            baseline=spec["baseline"]["name"],
            candidates=tuple((arm["name"], arm["precision"]) for arm in spec["candidates"]),
            metric=spec["metric"]["name"],
            terms=Terms(limits["pass"], limits["marginal"], spec["metric"]["higher_is_better"]),
            seeds=tuple(spec["seeds"]),
            sequential=bool(spec.get("sequential", False)),
        )
    except (KeyError, TypeError) as error:
        raise RecordError(
            f"The study {study.name!r} cannot be judged: its specification lacks {error}."
        ) from error


def finished(run: RunResult | None, metric: str) -> bool:
    """Whether a run came to its end with a metric that is a number."""
    return (
        run is not None and run.failure is None and math.isfinite(run.metrics.get(metric, math.nan))
    )


def repetitions(baseline: Sequence[RunResult], metric: str) -> tuple[int, ...]:
    """Seeds whose run is one that was there before: the same weights, batches, losses and metrics.

    A repetition is no further evidence. Counted as a seed it would make the noise look smaller than it is.
    Of a script only the metrics are known, and coarse ones coincide by chance: left out where they do, the
    rare values would weigh as much as the frequent ones. So there it is all or nothing. If the metrics of
    all runs are the same to the last digit, either the seed changes nothing or they are too coarse to tell.
    """
    done = [run for run in baseline if finished(run, metric)]
    seen: set[str] = set()
    repeated: list[int] = []
    for run in done:
        what = _identity(run)
        if what in seen:
            repeated.append(run.seed)
        seen.add(what)
    certain = all(run.initial_weights is not None for run in done)
    return tuple(repeated) if certain or len(seen) == 1 else ()


def _identity(run: RunResult) -> str:
    """What makes a run another one, as text, in which NaN equals NaN; how long it took does not."""
    metrics = {
        name: value
        for name, value in sorted(run.metrics.items())
        if not any(word in name.lower() for word in _OF_CLOCKS)
    }
    return repr((run.initial_weights, run.batch_order, run.curve.loss, metrics))


def pairs_of(
    name: str,
    precision: str,
    question: Question,
    runs: Mapping[tuple[str, int], RunResult],
) -> Pairs:
    """The seeds that the baseline finished, by what the candidate did with them."""
    seeds: list[int] = []
    broken: list[RunResult] = []
    gone: list[RunResult] = []
    twice: list[int] = []
    base = [run for (of, _), run in runs.items() if of == question.baseline]
    repeated = repetitions(base, question.metric)
    for seed in question.seeds:
        own = runs.get((name, seed))
        if own is None or not finished(runs.get((question.baseline, seed)), question.metric):
            continue
        if finished(own, question.metric):
            (twice if seed in repeated else seeds).append(seed)
        else:
            (gone if own.lost else broken).append(own)

    def metrics(of: str) -> Floats:
        return np.array([runs[of, seed].metrics[question.metric] for seed in seeds])

    return Pairs(
        name=name,
        precision=precision,
        seeds=tuple(seeds),
        baseline=metrics(question.baseline),
        candidate=metrics(name),
        broken=tuple(broken),
        lost=tuple(gone),
        repeated=tuple(twice),
        digests=all(run.initial_weights is not None for run in base),
        unfounded=None if any(finished(run, question.metric) for run in base) else _first(base),
    )


def _first(runs: Sequence[RunResult]) -> RunResult | None:
    return runs[0] if runs else None
