"""Many files: in this process when they are few, over all cores when they are many."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from halfguard.lint.engine import Diagnostic, lint_bytes
from halfguard.lint.fixes import fix_bytes
from halfguard.lint.match import FixKind
from halfguard.lint.rule import Rule
from halfguard.lint.settings import Settings

_FEW = 60  # below this, starting processes costs more than it saves
_CHUNK = 40


@dataclass(frozen=True)
class FileResult:
    """What came of one file; ``before`` and ``after`` are set where fixes changed it."""

    path: str
    diagnostics: list[Diagnostic]
    applied: int = 0
    before: bytes = b""
    after: bytes = b""


@dataclass(frozen=True)
class Job:
    """What every file of a run has in common."""

    settings: Settings
    kinds: tuple[FixKind, ...] = ()

    def run(self, path: Path) -> FileResult:
        """Look at one file, and fix it in memory when fixes are wanted."""
        try:
            data = path.read_bytes()
        except OSError:
            return FileResult(str(path), [])
        return self.run_bytes(data, str(path))

    def run_bytes(self, data: bytes, path: str) -> FileResult:
        """The same for bytes that are already here."""
        rules = _rules(self.settings)
        if not self.kinds:
            return FileResult(path, lint_bytes(data, path, self.settings, rules))
        fixed = fix_bytes(data, path, self.settings, rules, self.kinds)
        return FileResult(path, fixed.left, fixed.applied, data, fixed.data)


_chosen: dict[int, tuple[Rule, ...]] = {}


def _rules(settings: Settings) -> tuple[Rule, ...]:
    """The rules of a run, chosen once a process and not once a file."""
    if id(settings) not in _chosen:
        _chosen.clear()
        _chosen[id(settings)] = settings.rules()
    return _chosen[id(settings)]


def _run_chunk(job: Job, paths: list[Path]) -> list[FileResult]:
    return [job.run(path) for path in paths]


def run_files(
    job: Job, paths: list[Path], *, advance: Callable[[int], None] = lambda _: None
) -> Iterator[FileResult]:
    """The result of every file, in the order given; ``advance`` hears how many are done."""
    workers = min(len(os.sched_getaffinity(0)), 32) if hasattr(os, "sched_getaffinity") else 2
    if len(paths) < _FEW or workers < 2:
        for path in paths:
            yield job.run(path)
            advance(1)
        return
    chunks = [paths[i : i + _CHUNK] for i in range(0, len(paths), _CHUNK)]
    with ProcessPoolExecutor(workers, mp_context=_context()) as pool:
        futures = [pool.submit(_run_chunk, job, chunk) for chunk in chunks]
        with contextlib.ExitStack() as stack:
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            for future, chunk in zip(futures, chunks, strict=True):
                yield from future.result()
                advance(len(chunk))


def _context() -> multiprocessing.context.BaseContext:
    # Workers that are forked have the rules imported already, and need no importable main module.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    return multiprocessing.get_context(method)
