"""Compare logged runs: pair them by seed, and let ``validation`` judge them as it judges a study's runs.

The judgement sees a ``Study`` whose runs are the logged ones, so thresholds, statistics and reasons are the
same as those of ``halfguard validate``. What only a log can leave open is settled before: runs without a
seed, two runs with one seed, and pairs of different length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from halfguard.comparison.groups import RunGroup, read_groups
from halfguard.comparison.logged_run import At, LoggedRun, guess_direction
from halfguard.errors import UsageError
from halfguard.records.base import FloatRecordPart, Record
from halfguard.records.study import RunResult, Study, Verdict
from halfguard.validation.judgement.verdict import judge
from halfguard.validation.spec import Metric, Thresholds

_NOT_THE_RUN = (
    "system/"  # metrics of the machine, as MLflow calls them: they differ in repeated runs
)
_ANSWERED = ("baseline", "paired", "quality")  # what a log can answer of validate's checklist


@dataclass(frozen=True)
class CompareOptions:
    """The question: which metric, and which of its values."""

    metric: str
    higher_is_better: bool | None = None  # None: told by the metric's name
    at: At = At.LAST
    any_length: bool = False  # allow pairs that end at different steps


class ComparedRun(FloatRecordPart):
    """One logged run, as it entered the comparison."""

    group: str = Field(description="the side of the comparison that the run belongs to")
    place: str = Field(description="file or folder of the log")
    name: str
    tracker: str
    seed: int | None = None
    seed_source: str = Field(default="", description="where the seed was found")
    paired: bool = Field(default=False, description="another side has a run with this seed")
    value: float | None = Field(default=None, description="None if the metric was not logged")
    last_step: int | None = Field(default=None, description="of the metric")
    values: int = Field(default=0, description="how often the metric was logged")
    nonfinite: int = Field(default=0, description="how many logged values are NaN or Inf")
    problem: str | None = Field(default=None, description="why the run failed or has not finished")


class LoggedComparison(Record):
    """The verdict on logged runs."""

    kind: ClassVar[str] = "comparison"

    at: str = Field(description="which value of each run was compared: last, best or tail")
    verdict: Verdict
    runs: tuple[ComparedRun, ...]


def compare(
    arguments: Sequence[str], options: CompareOptions
) -> tuple[LoggedComparison, list[RunGroup]]:
    """Compare the first argument, the baseline, with each other one; return the groups for the page."""
    if len(set(arguments)) < max(2, len(arguments)):
        raise UsageError(
            "compare needs two or more different paths, the baseline first.",
            cure="For example: halfguard compare runs/fp32 runs/fp16 --metric val/loss",
        )
    groups = read_groups(arguments, options.metric)
    higher = options.higher_is_better
    if higher is None:
        higher = guess_direction(options.metric)
    metric = Metric(name=options.metric, higher_is_better=higher)
    return judge_groups(groups, metric, options), groups


def judge_groups(
    groups: Sequence[RunGroup], metric: Metric, options: CompareOptions
) -> LoggedComparison:
    """Give the verdict on groups of runs."""
    by_seed = [group.by_seed() for group in groups]
    _raise_if_partly_seeded(groups)
    seeds = sorted({seed for one in by_seed[1:] for seed in one if seed in by_seed[0]})
    names = [group.name for group in groups]
    runs = [
        _run_result(name, seed, one[seed], metric, options.at)
        for name, one in zip(names, by_seed, strict=True)
        for seed in seeds
        if seed in one
    ]
    if not options.any_length:
        _raise_if_lengths_differ(names, by_seed, seeds, metric)
    study = Study(
        name=f"{metric.name} of {', '.join(names[1:])} against {names[0]}",
        spec={
            "baseline": {"name": names[0], "precision": names[0]},
            "candidates": [{"name": name, "precision": name} for name in names[1:]],
            "seeds": seeds,
            "metric": metric.model_dump(),
            "thresholds": Thresholds().model_dump(by_alias=True),
        },
        runs=tuple(runs),
    )
    verdict = _for_logs(judge(study), groups, seeds, metric)
    compared = tuple(_compared(group, seeds, metric, options.at) for group in groups)
    return LoggedComparison(
        at=options.at, verdict=verdict, runs=tuple(run for one in compared for run in one)
    )


def _run_result(group: str, seed: int, run: LoggedRun, metric: Metric, at: At) -> RunResult:
    """Return a run as ``validate`` would have recorded it."""
    series = run.series
    if run.unfinished is not None:  # no steps and no environment: nothing is claimed about it
        return RunResult(
            candidate=group, precision=group, seed=seed, metrics={}, steps=0, duration=0,
            failure=run.unfinished, cause="unfinished",
        )  # fmt: skip
    last = {
        name: one.by_step().values[-1]
        for name, one in run.metrics.items()
        if name != metric.name and not name.startswith(_NOT_THE_RUN)
    }
    failure = run.failure
    if series is not None:
        last[metric.name] = series.take(at, higher_is_better=metric.higher_is_better)
    elif failure is None:
        failure = f"{metric.name} was not logged"
    return RunResult(
        candidate=group,
        precision=group,
        seed=seed,
        metrics=last,
        steps=max(series.steps[-1], 0) if series is not None else 0,
        duration=run.seconds,
        failure=failure,
        cause=None if series is not None or run.failure else "metric",
        environment={"log": run.place},
    )


def _for_logs(
    verdict: Verdict, groups: Sequence[RunGroup], seeds: Sequence[int], metric: Metric
) -> Verdict:
    """Drop what a log cannot answer, and add what a reader of it must know."""
    comparisons = verdict.comparisons
    if all(run.seed is None for group in groups for run in group.runs):
        reason = (
            "No run has a seed, so the runs cannot be paired. Runs in the same precision also "
            "differ between seeds, so a difference between unpaired runs proves nothing."
        )
        comparisons = tuple(one.model_copy(update={"reason": reason}) for one in comparisons)
    return verdict.model_copy(
        update={
            "comparisons": comparisons,
            "checklist": tuple(item for item in verdict.checklist if item.code in _ANSWERED),
            "way_back": (),
            "notes": (*verdict.notes, *_notes(groups, seeds, metric)),
        }
    )


def _notes(groups: Sequence[RunGroup], seeds: Sequence[int], metric: Metric) -> Iterator[str]:
    for group in groups:
        alone = sorted(set(group.by_seed()) - set(seeds))
        if alone:
            yield f"{group.name}: seed {', '.join(map(str, alone))} has no pair and is not used."
        for run in group.runs:
            series = run.series
            if series is not None and series.nonfinite and math.isfinite(series.values[-1]):
                yield (
                    f"{run.place}: {metric.name} was not finite in {series.nonfinite} of "
                    f"{len(series.values)} values, but the last one is finite."
                )
        if group.empty:
            yield (
                f"{group.name}: no values were logged in {', '.join(group.empty[:5])}, so these "
                "runs are excluded."
            )
        if group.ignored:
            others = ", ".join(group.ignored)
            yield f"{group.name} was read from {group.tracker}; {others} logged {metric.name} there too."
        for tracker, pip in group.missing.items():
            yield (
                f"{group.name}: logs of {tracker} were not read; its Python package is not "
                f"installed ({pip})."
            )


def _compared(
    group: RunGroup, seeds: Sequence[int], metric: Metric, at: At
) -> Iterator[ComparedRun]:
    for run in group.runs:
        series = run.series
        missing = None if series is not None else f"{metric.name} was not logged"
        better = metric.higher_is_better
        yield ComparedRun(
            group=group.name,
            place=run.place,
            name=run.name,
            tracker=group.tracker,
            seed=run.seed,
            seed_source=run.seed_source,
            paired=run.seed in seeds,
            value=series.take(at, higher_is_better=better) if series else None,
            last_step=series.steps[-1] if series else None,
            values=len(series.values) if series else 0,
            nonfinite=series.nonfinite if series else 0,
            problem=run.failure or run.unfinished or missing,
        )


def _raise_if_partly_seeded(groups: Sequence[RunGroup]) -> None:
    """Raise if some runs have a seed and others have none."""
    runs = [run for group in groups for run in group.runs]
    without = [run.place for run in runs if run.seed is None]
    if without and len(without) < len(runs):
        listed = ", ".join(without[:5]) + (", ..." if len(without) > 5 else "")
        raise UsageError(
            f"{len(without)} of {len(runs)} runs have no seed: {listed}. Excluding them could hide a "
            "failure.",
            cure="Add the seed to the run's name (fp16-seed3), or specify paths that do not "
            "include these runs.",
        )


def _raise_if_lengths_differ(
    names: Sequence[str],
    by_seed: Sequence[Mapping[int, LoggedRun]],
    seeds: Sequence[int],
    metric: Metric,
) -> None:
    """Raise if a pair ends at different steps: training longer would be part of the result."""
    different = []
    for name, runs in zip(names[1:], by_seed[1:], strict=True):
        for seed in (seed for seed in seeds if seed in runs):
            base, own = _length(by_seed[0][seed]), _length(runs[seed])
            if base is not None and own is not None and base != own:
                different.append(f"seed {seed}: {names[0]} {base:,}, {name} {own:,}")
    if different:
        listed = "; ".join(different[:5]) + ("; ..." if len(different) > 5 else "")
        raise UsageError(
            f"Runs with the same seed log {metric.name} up to different steps ({listed}). A "
            "verdict would compare the length of training, not only the precision.",
            cure="If this is intended, for example because of early stopping, add --any-length.",
        )


def _length(run: LoggedRun) -> int | None:
    """Return the last step, or the number of values if steps were not logged; None for a broken run."""
    broken = run.failure or run.unfinished
    if broken or run.series is None or not math.isfinite(run.series.values[-1]):
        return None
    return run.series.steps[-1] if any(run.series.steps) else len(run.series.steps) - 1
