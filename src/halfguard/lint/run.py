"""Check files, and fix them in memory."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from halfguard.lint.engine import lint_bytes
from halfguard.lint.fixes import fix_bytes
from halfguard.lint.match import Diagnostic, FixKind
from halfguard.lint.project import UNKNOWN, Project, find_root, project_files, read_project
from halfguard.lint.rule import Rule
from halfguard.lint.settings import DEFAULT_EXCLUDE, Settings

_ONCE = "HG309"  # scripts for other settings save alike


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

    @cached_property
    def _rules(self) -> tuple[Rule, ...]:
        return self.settings.rules()

    def with_project_of(self, path: Path) -> Linter:
        """Return a linter that knows how the project of a file or folder trains."""
        root = find_root(path)
        if root is None:
            return self
        return replace(self, project=read_project(_contents(project_files(root, DEFAULT_EXCLUDE))))

    def check_file(self, path: Path) -> FileResult:
        """Check one file, and fix it in memory."""
        try:
            data = path.read_bytes()
        except OSError:
            return FileResult(str(path), [])
        return self.check_bytes(data, str(path))

    def check_bytes(self, data: bytes, path: str) -> FileResult:
        """Check a file that is already in memory."""
        if not self.kinds:
            found = lint_bytes(data, path, self.settings, self._rules, self.project)
            return FileResult(path, found)
        fixed = fix_bytes(data, path, self.settings, self._rules, self.kinds, self.project)
        return FileResult(path, fixed.remaining, fixed.applied, data, fixed.data)


def _contents(files: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    """Yield the files that can be read, with their bytes."""
    for file in files:
        with contextlib.suppress(OSError):
            yield file, file.read_bytes()


def run_files(
    linter: Linter, paths: list[Path], advance: Callable[[int], None] = lambda _: None
) -> Iterator[FileResult]:
    """Yield the result of every file, in order; call ``advance`` after each."""
    results = []
    for path in paths:
        results.append(linter.check_file(path))
        advance(1)
    yield from _without_copies(results)


def _without_copies(results: list[FileResult]) -> Iterator[FileResult]:
    """Yield results in which variants of a script, in one folder, report the same checkpoint once."""
    files = Counter(key for r in results for key in {_place(d) for d in r.diagnostics})
    seen: set[tuple[str, Path, str]] = set()
    for result in results:
        kept: list[Diagnostic] = []
        for found in result.diagnostics:
            others = files[_place(found)] - 1 if found.code == _ONCE else 0
            if others and _place(found) in seen:
                continue
            seen.add(_place(found))
            message = f"{found.message} Other files of this folder with this line: {others}."
            kept.append(replace(found, message=message) if others else found)
        yield replace(result, diagnostics=kept)


def _place(found: Diagnostic) -> tuple[str, Path, str]:
    return found.code, Path(found.path).parent, found.snippet.strip()
