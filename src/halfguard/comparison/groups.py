"""The sides of a comparison: each argument of the command is a group of runs with seeds and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from halfguard.comparison.log_files import read_runs, split_argument
from halfguard.comparison.logged_run import LoggedRun, Series
from halfguard.comparison.seeds import Seed, find_seed, require_key
from halfguard.comparison.suggestions import did_you_mean, list_names
from halfguard.comparison.values import up_to
from halfguard.errors import UsageError


@dataclass(frozen=True)
class GroupedRun:
    """A run with its seed and the series that is compared, which is None if it was not logged."""

    log: LoggedRun
    seed: Seed | None
    series: Series | None


@dataclass(frozen=True)
class RunGroup:
    """The runs of one argument, all read from one tracker's files."""

    name: str
    tracker: str
    runs: tuple[GroupedRun, ...]
    empty: tuple[str, ...]  # places of runs without a single metric
    ignored: tuple[str, ...]  # other trackers that logged the metric there

    def by_seed(self) -> dict[int, GroupedRun]:
        """Return the runs by their seeds; raise if two have the same."""
        found: dict[int, GroupedRun] = {}
        for run in self.runs:
            if run.seed is None:
                continue
            other = found.setdefault(run.seed.value, run)
            if other is not run:
                raise UsageError(
                    f"{self.name} has two runs with seed {run.seed.value}: {other.log.place} and "
                    f"{run.log.place}.",
                    cure="Each seed may occur once on each side. Give a path or PATH:KEY=VALUE that "
                    "leaves one of them out; if the seed is wrong, say which setting has it: --seed-key.",
                )
        return found


def read_groups(
    arguments: Sequence[str], metric: str, *, until: int | None, seed_key: str | None
) -> list[RunGroup]:
    """Read every argument; the first is the baseline."""
    logs = [_choose(argument, read_runs(argument), metric) for argument in arguments]
    if seed_key is not None:
        require_key(seed_key, [run for _, runs, _ in logs for run in runs])
    groups = []
    for name, argument, (tracker, runs, ignored) in zip(
        _names(arguments), arguments, logs, strict=True
    ):
        root = split_argument(argument)[0]
        with_metrics = [run for run in runs if run.metrics or run.failure or run.unfinished]
        grouped = tuple(
            GroupedRun(run, find_seed(run, root, seed_key), _series(run, metric, until))
            for run in with_metrics
        )
        if until is not None and not any(run.series for run in grouped):
            first = min(min(run.metrics[metric].steps) for run in runs if metric in run.metrics)
            raise UsageError(
                f"--until {until}: {name} has no value of {metric} up to that step.",
                cure=f"The first value was logged at step {first}.",
            )
        empty = tuple(run.place for run in runs if run not in with_metrics)
        groups.append(RunGroup(name, tracker, grouped, empty, ignored))
    return groups


def _series(run: LoggedRun, metric: str, until: int | None) -> Series | None:
    if metric not in run.metrics:
        return None
    series = up_to(run.metrics[metric], until)
    return series if series.values else None


def _choose(
    argument: str, runs: Mapping[str, Sequence[LoggedRun]], metric: str
) -> tuple[str, Sequence[LoggedRun], tuple[str, ...]]:
    """Return the tracker with the most runs that have the metric; of equals, the first in rank."""
    counts = {name: sum(metric in run.metrics for run in found) for name, found in runs.items()}
    logged = [name for name, count in counts.items() if count]
    if not logged:
        known = {name for found in runs.values() for run in found for name in run.metrics}
        raise UsageError(
            f"{argument}: no run has a metric {metric!r}.{did_you_mean(metric, known)}",
            cure=f"Metrics that were found ({', '.join(runs)}): {list_names(known)}.",
        )
    tracker = max(logged, key=counts.__getitem__)
    return tracker, runs[tracker], tuple(name for name in logged if name != tracker)


def _names(arguments: Sequence[str]) -> list[str]:
    """Return short names for the groups: the value that selects, or the end of the path, if they differ."""
    short, paths = [], []
    for argument in arguments:
        path, selection = split_argument(argument)
        end = ",".join(selection.values()) or PurePath(path).name
        short.append(end.strip("*").strip("-_.") or argument)
        paths.append(PurePath(path).parts)
    if len(set(short)) == len(short):
        return short
    shared = sum(
        1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    )
    ends = [str(PurePath(*parts[shared:])) for parts in paths]
    return ends if len(set(ends)) == len(ends) else list(arguments)
