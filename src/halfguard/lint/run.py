"""Check many files: a few in this process, many on all cores."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfguard.lint.engine import lint_bytes
from halfguard.lint.fixes import fix_bytes
from halfguard.lint.match import Diagnostic, FixKind
from halfguard.lint.project import (
    UNKNOWN,
    Project,
    find_root,
    project_files,
    read_project,
)
from halfguard.lint.registry import select_rules
from halfguard.lint.rule import Rule
from halfguard.lint.settings import DEFAULT_EXCLUDE, Settings

if TYPE_CHECKING:
    import multiprocessing.context

_MIN_FILES_FOR_POOL = 60  # for fewer files, starting processes costs more than it saves
_CHUNK = 40


@dataclass(frozen=True)
class FileResult:
    """Findings of one file; ``before`` and ``after`` are its bytes if fixes were requested."""

    path: str
    diagnostics: list[Diagnostic]
    applied: int = 0
    before: bytes = b""
    after: bytes = b""


@dataclass(frozen=True)
class Linter:
    """Checks files with one set of rules, and fixes them if kinds of fixes are given."""

    settings: Settings
    kinds: tuple[FixKind, ...] = ()
    project: Project = UNKNOWN

    def with_project_of(self, path: Path) -> Linter:
        """Return a linter that knows how the project of a file or folder trains."""
        root = find_root(path)
        if root is None:
            return self
        contents = _contents(project_files(root, DEFAULT_EXCLUDE))
        return replace(self, project=read_project(contents))

    def check_file(self, path: Path) -> FileResult:
        """Check one file, and fix it in memory."""
        try:
            data = path.read_bytes()
        except OSError:
            return FileResult(str(path), [])
        return self.check_bytes(data, str(path))

    def check_bytes(self, data: bytes, path: str) -> FileResult:
        """Check a file that is already in memory."""
        rules = _rules(self.settings)
        if not self.kinds:
            found = lint_bytes(data, path, self.settings, rules, self.project)
            return FileResult(path, found, before=data, after=data)
        fixed = fix_bytes(data, path, self.settings, rules, self.kinds, self.project)
        return FileResult(path, fixed.remaining, fixed.applied, data, fixed.data)


def _contents(files: Iterable[Path]) -> Iterator[bytes]:
    """Yield the bytes of the files that can be read."""
    for file in files:
        try:
            data = file.read_bytes()
        except OSError:
            continue
        yield data


@functools.lru_cache(maxsize=1)
def _rules_for(
    select: tuple[str, ...], ignore: tuple[str, ...], *, preview: bool
) -> tuple[Rule, ...]:
    return select_rules(select, ignore, preview=preview)


def _rules(settings: Settings) -> tuple[Rule, ...]:
    """Return the rules of a run, selected once per process and not once per file."""
    return _rules_for(settings.select, settings.ignore, preview=settings.preview)


def _check_chunk(linter: Linter, paths: list[Path]) -> list[FileResult]:
    # Bytes are needed only for fixes, and would be sent between processes.
    results = [linter.check_file(path) for path in paths]
    return results if linter.kinds else [replace(r, before=b"", after=b"") for r in results]


def run_files(
    linter: Linter, paths: list[Path], advance: Callable[[int], None] = lambda _: None
) -> Iterator[FileResult]:
    """Yield the result of every file, in order; call ``advance`` with the number of new results."""
    workers = min(len(os.sched_getaffinity(0)), 32) if hasattr(os, "sched_getaffinity") else 2
    if len(paths) < _MIN_FILES_FOR_POOL or workers < 2:
        for path in paths:
            yield from _check_chunk(linter, [path])
            advance(1)
        return
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415

    chunks = [paths[i : i + _CHUNK] for i in range(0, len(paths), _CHUNK)]
    with ProcessPoolExecutor(workers, mp_context=_context()) as pool:
        futures = [pool.submit(_check_chunk, linter, chunk) for chunk in chunks]
        with contextlib.ExitStack() as stack:
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            for future, chunk in zip(futures, chunks, strict=True):
                yield from future.result()
                advance(len(chunk))


def _context() -> multiprocessing.context.BaseContext:
    import multiprocessing  # noqa: PLC0415

    # Forked workers have already imported the rules, and do not import the main module again.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    return multiprocessing.get_context(method)
