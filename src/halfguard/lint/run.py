"""Check many files: a few in this process, many on all cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from halfguard.lint.diagnostic import Diagnostic
from halfguard.lint.engine import lint_bytes
from halfguard.lint.fixes import fix_bytes
from halfguard.lint.match import FixKind
from halfguard.lint.project import UNKNOWN, Project, find_root, project_files, read_project
from halfguard.lint.rule import Rule
from halfguard.lint.settings import DEFAULT_EXCLUDE, Settings

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
        return replace(self, project=read_project(project_files(root, DEFAULT_EXCLUDE)))

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
            return FileResult(path, lint_bytes(data, path, self.settings, rules, self.project))
        fixed = fix_bytes(data, path, self.settings, rules, self.kinds, self.project)
        return FileResult(path, fixed.remaining, fixed.applied, data, fixed.data)


_rules_of: dict[int, tuple[Rule, ...]] = {}


def _rules(settings: Settings) -> tuple[Rule, ...]:
    """Return the rules of a run, selected once per process and not once per file."""
    if id(settings) not in _rules_of:
        _rules_of.clear()
        _rules_of[id(settings)] = settings.rules()
    return _rules_of[id(settings)]


def _check_chunk(linter: Linter, paths: list[Path]) -> list[FileResult]:
    return [linter.check_file(path) for path in paths]


def run_files(
    linter: Linter, paths: list[Path], *, advance: Callable[[int], None] = lambda _: None
) -> Iterator[FileResult]:
    """Yield the result of every file, in order; call ``advance`` with the number of new results."""
    workers = min(len(os.sched_getaffinity(0)), 32) if hasattr(os, "sched_getaffinity") else 2
    if len(paths) < _MIN_FILES_FOR_POOL or workers < 2:
        for path in paths:
            yield linter.check_file(path)
            advance(1)
        return
    chunks = [paths[i : i + _CHUNK] for i in range(0, len(paths), _CHUNK)]
    with ProcessPoolExecutor(workers, mp_context=_context()) as pool:
        futures = [pool.submit(_check_chunk, linter, chunk) for chunk in chunks]
        with contextlib.ExitStack() as stack:
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            for future, chunk in zip(futures, chunks, strict=True):
                yield from future.result()
                advance(len(chunk))


def _context() -> multiprocessing.context.BaseContext:
    # Forked workers have already imported the rules, and do not import the main module again.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    return multiprocessing.get_context(method)
