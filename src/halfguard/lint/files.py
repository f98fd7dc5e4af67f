"""Find the files to check in the given files and folders."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.lint.settings import DEFAULT_EXCLUDE, Settings

SUFFIXES = (".py", ".pyi", ".yaml", ".yml")


def find_files(paths: Iterable[Path], settings: Settings) -> list[Path]:
    """Return every file to check, once, in a stable order.

    The default excludes apply only below the given folders. So ``lint .`` skips site-packages, and
    ``lint .venv/.../torch`` does not.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found.update(dict.fromkeys(_files_below(path)))
        elif path.exists():
            found[path] = None
        else:
            raise UsageError(f"There is no file or folder {path}.")
    if not settings.exclude:
        return list(found)
    return [path for path in found if not settings.excludes(path)]


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_excluded(name))
        for name in sorted(files):
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(parent) / name


def _is_excluded(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in DEFAULT_EXCLUDE)
