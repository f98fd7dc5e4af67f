"""Find the files to check in the given files and folders."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.lint.settings import DEFAULT_EXCLUDE, Settings

SUFFIXES = (".py", ".pyi")
_NOT_READ = (".ipynb", ".yaml", ".yml")


def find_files(paths: Iterable[Path], settings: Settings) -> list[Path]:
    """Return every file to check, once, in a stable order; a link to a file counts as the file.

    The default excludes apply only below the given folders. So ``lint .`` skips site-packages, and
    ``lint .venv/.../torch`` does not.
    """
    found: dict[str, Path] = {}  # by the real path
    for path in paths:
        if path.is_dir():
            for file, real in _files_below(path):
                # The file itself is reported rather than a link to it.
                if real not in found or os.path.islink(found[real]):  # noqa: PTH114
                    found[real] = file
        elif path.suffix in _NOT_READ:
            raise UsageError(f"{path} is not a Python file: lint reads .py and .pyi files.")
        elif path.exists():
            found.setdefault(os.path.realpath(path), path)
        else:
            raise UsageError(f"The file or folder {path} does not exist.")
    files = list(found.values())
    return [path for path in files if not settings.excludes(path)] if settings.exclude else files


def _files_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files below a folder, each with its real path."""
    top = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_excluded(name))
        real_parent = os.path.normpath(os.path.join(top, os.path.relpath(parent, folder)))  # noqa: PTH118
        for name in sorted(files):
            if not name.endswith(SUFFIXES) or name.startswith("."):
                continue
            path = Path(parent) / name
            is_link = os.path.islink(path)  # noqa: PTH114
            yield path, os.path.realpath(path) if is_link else f"{real_parent}{os.sep}{name}"


def _is_excluded(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in DEFAULT_EXCLUDE)
