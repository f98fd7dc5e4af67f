"""Which files to look at: those that were named, and what lies below the folders that were."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.lint.settings import DEFAULT_EXCLUDE, Settings

SUFFIXES = (".py", ".pyi", ".yaml", ".yml")


def find_files(paths: Iterable[Path], settings: Settings) -> list[Path]:
    """Every file to lint, once, in a stable order.

    A folder that is named is searched, whatever it is called; only what lies below it can be
    excluded by default. So ``lint .`` passes over site-packages, and ``lint .venv/.../torch`` does not.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found.update(dict.fromkeys(_below(path)))
        elif path.exists():
            found[path] = None
        else:
            raise UsageError(f"There is no file or folder {path}.")
    if not settings.exclude:
        return list(found)
    return [path for path in found if not settings.excludes(path)]


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_excluded(name))
        for name in sorted(files):
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(place) / name


def _is_excluded(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in DEFAULT_EXCLUDE)
