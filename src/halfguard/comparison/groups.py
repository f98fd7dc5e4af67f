"""The sides of a comparison: each argument of the command is a group of runs with seeds and values.

A seed comes from the settings of a run, else from its name, else from the name of its folder. A setting whose
name is one of ``KEYS`` counts, at any depth; of several, the one that is nested least. In a name, the word
"seed" followed by a number counts: fp16-seed3, seed_3, seed=3.

A path is a file, a folder with any number of runs at any depth, or a quoted pattern such as 'runs/fp16-*'.
Many trackers keep all runs in one place, so ``KEY=VALUE`` selects among them: by a setting of the run
(``precision=16-mixed``) or by the tracker's own labels (``group=fp16``, ``experiment=fp16``, ``name=a-*``).
"""

from __future__ import annotations

import difflib
import glob
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch, fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePath
from typing import NamedTuple

from halfguard.comparison.logged_run import LoggedRun
from halfguard.comparison.tracker_files import (
    read_lightning_csv,
    read_mlflow,
    read_tensorboard,
    read_trainer_state,
    read_wandb,
)
from halfguard.errors import UsageError

_SQLITE = "sqlite:///"  # in front of MLflow's tracking URI
_LISTED = 30


class Reader(NamedTuple):
    """How the logs of one tracker are found and read."""

    name: str
    files: tuple[str, ...]
    read: Callable[[Sequence[Path]], Iterator[LoggedRun]]
    package: str = ""  # the tracker's own, if it is needed


# If several trackers logged the same runs, the first of them is read: TensorBoard rounds to float32.
READERS = (
    Reader("MLflow", ("*.db", "*.sqlite", "*.sqlite3"), read_mlflow, "mlflow"),
    Reader("wandb", ("*.wandb",), read_wandb, "wandb"),
    Reader("transformers' Trainer", ("trainer_state.json",), read_trainer_state),
    Reader("Lightning's CSVLogger", ("metrics.csv",), read_lightning_csv),
    Reader("TensorBoard", ("*tfevents*",), read_tensorboard, "tensorboard"),
)


class Found(NamedTuple):
    """The runs of an argument by their tracker, runs without metrics too, and trackers that are missing."""

    runs: dict[str, list[LoggedRun]]
    missing: dict[str, str]  # the pip command by the tracker whose package is not installed


def read_runs(argument: str) -> Found:
    """Return the runs that an argument means."""
    where, selection = split_argument(argument)
    files = _files(where)
    runs, missing = {}, {}
    for reader in READERS:
        own = sorted(path for path in files if any(fnmatch(path.name, p) for p in reader.files))
        try:
            with warnings.catch_warnings(action="ignore"):  # of the package, about its own code
                found = list(reader.read(own))
            if found:
                runs[reader.name] = found
        except OSError as error:
            raise UsageError(f"A log of {reader.name} cannot be read: {error}.") from error
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != reader.package:
                raise
            missing[reader.name] = f"pip install {reader.package}"
    if missing and not runs:
        names = " and ".join(missing)
        raise UsageError(
            f"{argument} contains logs of {names}, but the Python package to read them is not "
            "installed.",
            cure=f"Run: {' or '.join(missing.values())}",
        )
    if not runs:
        kinds = ", ".join(f"{reader.name} ({' or '.join(reader.files)})" for reader in READERS)
        raise UsageError(
            f"{argument} contains no runs of a tracker that halfguard can read.",
            cure=f"halfguard reads: {kinds}. Specify the folder or file that contains the runs.",
        )
    return Found(_select(runs, selection, argument) if selection else runs, missing)


def split_argument(argument: str) -> tuple[str, dict[str, str]]:
    """Return the path, and the settings that runs must have."""
    argument = argument.removeprefix(_SQLITE)
    path, colon, selection = argument.rpartition(":")
    if not colon or "=" not in selection or Path(argument).exists():
        return argument, {}
    pairs = (part.partition("=") for part in selection.split(","))
    return path, {key.strip(): value.strip() for key, _, value in pairs}


def _files(where: str) -> list[Path]:
    paths = [Path(where)] if Path(where).exists() else [Path(p) for p in sorted(glob.glob(where))]  # noqa: PTH207
    if not paths:
        raise UsageError(
            f"{where} does not exist.",
            cure="Specify a file, a folder, or a quoted pattern such as 'runs/fp16-*'. To select "
            "runs by a setting, write PATH:KEY=VALUE.",
        )
    found = [path for path in paths if path.is_file()]
    for folder in (path for path in paths if path.is_dir()):
        for place, _, names in os.walk(folder):
            found += [Path(place, name) for name in names]
    return found


def _select(
    runs: Mapping[str, list[LoggedRun]], selection: Mapping[str, str], argument: str
) -> dict[str, list[LoggedRun]]:
    every = [run.settings for one in runs.values() for run in one]
    for key, value in selection.items():
        known = {name for settings in every for name in settings}
        values = [settings[key] for settings in every if key in settings]
        if not values:
            raise UsageError(
                f"{argument}: no run has {key!r}.{did_you_mean(key, known)}",
                cure=f"Available settings: {list_names(known)}.",
            )
        if not any(_matches(one, value) for one in values):
            raise UsageError(
                f"{argument}: no run has {key}={value}.",
                cure=(f"Available values: {list_names(values)}."),
            )
    chosen = {
        name: [run for run in one if _has(run.settings, selection)] for name, one in runs.items()
    }
    if not any(chosen.values()):
        raise UsageError(f"{argument}: no run has all of these settings.")
    return {name: one for name, one in chosen.items() if one}


def _has(settings: Mapping[str, str], selection: Mapping[str, str]) -> bool:
    return all(
        key in settings and _matches(settings[key], value) for key, value in selection.items()
    )


def _matches(value: str, pattern: str) -> bool:
    return fnmatchcase(value.casefold(), pattern.casefold())


def list_names(names: Iterable[str]) -> str:
    """Return the names in order, or the first of them."""
    found = sorted(set(names))
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return f"{', '.join(found[:_LISTED])}{more}" if found else "none"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with the closest names, or an empty string."""
    known = sorted(set(names))
    last = name.replace(".", "/").replace("_", "/").split("/")[-1]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    close = close or [one for one in known if last and last in one][:3]
    return f" Did you mean {' or '.join(close)}?" if close else ""


KEYS = ("seed", "random_seed", "manual_seed", "rng_seed", "seed_everything", "random_state")
_IN_NAME = re.compile(r"seed[-_=. ]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class RunGroup:
    """The runs of one argument, all read from one tracker's files."""

    name: str
    tracker: str
    runs: tuple[LoggedRun, ...]
    empty: tuple[str, ...]  # places of runs without a single metric
    ignored: tuple[str, ...]  # other trackers that logged the metric there
    missing: Mapping[str, str]  # trackers whose package is not installed, with the pip command

    def by_seed(self) -> dict[int, LoggedRun]:
        """Return the runs by their seeds; raise if two have the same."""
        found: dict[int, LoggedRun] = {}
        for run in self.runs:
            if run.seed is None:
                continue
            other = found.setdefault(run.seed, run)
            if other is not run:
                raise UsageError(
                    f"{self.name} has two runs with seed {run.seed}: {other.place} and {run.place}.",
                    cure=(
                        "Each seed may occur only once on each side. Specify a path or "
                        "PATH:KEY=VALUE that excludes one of the runs."
                    ),
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
        runs, empty = [], []
        for run in found.runs[tracker]:
            if run.metrics or run.failure or run.unfinished:
                run.seed, run.seed_source = find_seed(run, split_argument(argument)[0])
                run.series = run.metrics[metric].by_step() if metric in run.metrics else None
                runs.append(run)
            else:
                empty.append(run.place)
        seen = (tuple(runs), tuple(empty), tuple(others))
        groups.append(RunGroup(name, tracker, *seen, found.missing))
    return groups


def _trackers(argument: str, found: Found, metric: str) -> list[str]:
    """Return the trackers that logged the metric: first the one with the most runs that have it."""
    counts = {name: sum(metric in run.metrics for run in runs) for name, runs in found.runs.items()}
    if not any(counts.values()):
        known = {name for runs in found.runs.values() for run in runs for name in run.metrics}
        more = "".join(
            (f" {name} also logged there; to read its logs: {pip}.")
            for name, pip in found.missing.items()
        )
        raise UsageError(
            f"{argument}: no run has a metric {metric!r}.{did_you_mean(metric, known)}",
            cure=f"Available metrics ({', '.join(found.runs)}): {list_names(known)}.{more}",
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


def find_seed(run: LoggedRun, root: str) -> tuple[int | None, str]:
    """Return the seed of a run found under ``root``, and where it was found."""
    settings = run.settings
    named = [name for name in settings if _last(name) in KEYS]
    for name in sorted(named, key=lambda name: (name.count("."), KEYS.index(_last(name)))):
        number = _integer(settings[name])
        if number is not None:
            return number, f"setting {name}"
    if found := _IN_NAME.search(run.name):
        return int(found[1]), "name of the run"
    parts = PurePath(run.place).parts
    # Folders below ``root``, which may be a pattern, and the last one of ``root`` itself.
    below = parts[max(min(len(PurePath(root).parts), len(parts)) - 1, 0) :]
    for part in reversed(below):
        if found := _IN_NAME.search(part):
            return int(found[1]), "name of the folder"
    return None, ""


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?\d+", text.strip()) else None
