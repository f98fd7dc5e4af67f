"""The sides of a comparison: each argument of the command is a group of runs with seeds and values.

A seed comes from the settings of a run, else from its name, else from the name of its folder. A setting whose
name is one of ``KEYS`` counts, at any depth; of several, the one that is nested least. In a name, the word
"seed" followed by a number counts: fp16-seed3, seed_3, seed=3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from halfguard.comparison.logged_run import LoggedRun, Series
from halfguard.comparison.places import Found, did_you_mean, list_names, read_runs, split_argument
from halfguard.errors import UsageError

KEYS = ("seed", "random_seed", "manual_seed", "rng_seed", "seed_everything", "random_state")
_IN_NAME = re.compile(r"seed[-_=. ]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Seed:
    """A seed, and where it was found."""

    value: int
    source: str


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
    missing: Mapping[str, str]  # trackers whose package is not installed, with the pip command

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
                    "leaves one of them out.",
                )
        return found


def read_groups(arguments: Sequence[str], metric: str) -> list[RunGroup]:
    """Read every argument; the first is the baseline."""
    read = [read_runs(argument) for argument in arguments]
    logged = [_trackers(*pair, metric) for pair in zip(arguments, read, strict=True)]
    groups = []
    for name, argument, found, (tracker, *others) in zip(
        _names(arguments), arguments, read, logged, strict=True
    ):
        runs, root = found.runs[tracker], split_argument(argument)[0]
        with_metrics = [run for run in runs if run.metrics or run.failure or run.unfinished]
        grouped = tuple(
            GroupedRun(run, find_seed(run, root), _series(run, metric)) for run in with_metrics
        )
        empty = tuple(run.place for run in runs if run not in with_metrics)
        groups.append(RunGroup(name, tracker, grouped, empty, tuple(others), found.missing))
    return groups


def _series(run: LoggedRun, metric: str) -> Series | None:
    return run.metrics[metric].by_step() if metric in run.metrics else None


def _trackers(argument: str, found: Found, metric: str) -> list[str]:
    """Return the trackers that logged the metric: first the one with the most runs that have it."""
    counts = {name: sum(metric in run.metrics for run in runs) for name, runs in found.runs.items()}
    if not any(counts.values()):
        known = {name for runs in found.runs.values() for run in runs for name in run.metrics}
        more = "".join(f" {name} logged there too: {pip}." for name, pip in found.missing.items())
        raise UsageError(
            f"{argument}: no run has a metric {metric!r}.{did_you_mean(metric, known)}",
            cure=f"Metrics that were found ({', '.join(found.runs)}): {list_names(known)}.{more}",
        )
    # Of equals, the first of READERS.
    return sorted((name for name in counts if counts[name]), key=lambda name: -counts[name])


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


def find_seed(run: LoggedRun, root: str) -> Seed | None:
    """Return the seed of a run found under ``root``."""
    settings = run.settings
    named = [name for name in settings if _last(name) in KEYS]
    for name in sorted(named, key=lambda name: (name.count("."), KEYS.index(_last(name)))):
        number = _integer(settings[name])
        if number is not None:
            return Seed(number, f"setting {name}")
    if found := _IN_NAME.search(run.name):
        return Seed(int(found[1]), "name of the run")
    parts = PurePath(run.place).parts
    # Folders below ``root``, which may be a pattern, and the last one of ``root`` itself.
    below = parts[max(min(len(PurePath(root).parts), len(parts)) - 1, 0) :]
    for part in reversed(below):
        if found := _IN_NAME.search(part):
            return Seed(int(found[1]), "name of the folder")
    return None


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?\d+", text.strip()) else None
