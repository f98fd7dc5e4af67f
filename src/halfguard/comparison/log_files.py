"""From an argument of the command to the runs it means: ``PATH``, or ``PATH:KEY=VALUE``.

A path is a file, a folder with any number of runs at any depth, or a quoted pattern such as 'runs/fp16-*'.
Many trackers keep all runs in one place, so ``KEY=VALUE`` selects among them: by a setting of the run
(``precision=16-mixed``) or by the tracker's own labels (``group=fp16``, ``experiment=fp16``, ``name=a-*``).
"""

from __future__ import annotations

import glob
import importlib
import os
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch, fnmatchcase
from pathlib import Path
from typing import Protocol, cast

from halfguard.comparison import readers
from halfguard.comparison.logged_run import LoggedRun
from halfguard.comparison.suggestions import did_you_mean, list_names
from halfguard.errors import UsageError

_SQLITE = "sqlite:///"  # in front of MLflow's tracking URI


class Reader(Protocol):
    """A module of ``readers``."""

    NAME: str
    FILES: tuple[str, ...]
    RANK: int

    def read(self, files: Sequence[Path]) -> Iterator[LoggedRun]: ...


def all_readers() -> list[Reader]:
    """Return every reader, by rank."""
    names = (module.name for module in pkgutil.iter_modules(readers.__path__))
    found = [importlib.import_module(f"{readers.__name__}.{name}") for name in names]
    return sorted((cast(Reader, one) for one in found), key=lambda one: (one.RANK, one.NAME))


def read_runs(argument: str) -> dict[str, list[LoggedRun]]:
    """Return the runs that an argument means, by the name of their reader; runs without metrics too."""
    where, selection = split_argument(argument)
    files = _files(where)
    runs = {}
    for reader in all_readers():
        own = [path for path in files if any(fnmatch(path.name, p) for p in reader.FILES)]
        if own and (found := list(_read(reader, own))):
            runs[reader.NAME] = found
    if not runs:
        raise UsageError(
            f"{argument} holds no run of a tracker that halfguard reads.",
            cure=f"It reads: {', '.join(_kinds())}. Give the folder or the file that holds them.",
        )
    return _select(runs, selection, argument) if selection else runs


def split_argument(argument: str) -> tuple[str, dict[str, str]]:
    """Return the path, and the settings that runs must have."""
    argument = argument.removeprefix(_SQLITE)
    path, colon, selection = argument.rpartition(":")
    if not colon or "=" not in selection or Path(argument).exists():
        return argument, {}
    pairs = (part.partition("=") for part in selection.split(","))
    return path.removeprefix(_SQLITE), {key.strip(): value.strip() for key, _, value in pairs}


def _kinds() -> Iterator[str]:
    for reader in all_readers():
        yield f"{reader.NAME} ({' or '.join(reader.FILES)})"


def _files(where: str) -> list[Path]:
    paths = [Path(where)] if Path(where).exists() else [Path(p) for p in sorted(glob.glob(where))]  # noqa: PTH207
    if not paths:
        raise UsageError(
            f"{where} does not exist.",
            cure="Give a file, a folder, or a quoted pattern such as 'runs/fp16-*'. To select runs by a "
            "setting, write PATH:KEY=VALUE.",
        )
    found = [path for path in paths if path.is_file()]
    for folder in (path for path in paths if path.is_dir()):
        for place, _, names in os.walk(folder):
            found += [Path(place, name) for name in names]
    return found


def _read(reader: Reader, files: Sequence[Path]) -> Iterator[LoggedRun]:
    try:
        yield from reader.read(files)
    except OSError as error:
        raise UsageError(f"A log of {reader.NAME} cannot be read: {error}.") from error


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
                cure=f"Runs there have: {list_names(known)}.",
            )
        if not any(_matches(one, value) for one in values):
            raise UsageError(
                f"{argument}: no run has {key}={value}.", cure=f"There is {list_names(values)}."
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
