"""Check files, and fix them in memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
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
        files = _contents(project_files(root, DEFAULT_EXCLUDE))
        return replace(self, project=read_project(files, root))

    def check_file(self, path: Path) -> FileResult:
        """Check one file, and fix it in memory."""
        data = _content(path)
        return self.check_bytes(data, str(path)) if data is not None else FileResult(str(path), [])

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
        if (data := _content(file)) is not None:
            yield file, data


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def run_files(
    linter: Linter, paths: list[Path], advance: Callable[[int], None] = lambda _: None
) -> Iterator[FileResult]:
    """Yield the result of every file, in order; call ``advance`` after each."""
    seen: dict[Hashable, Path] = {}
    for path in paths:
        result = linter.check_file(path)
        if result.diagnostics:
            is_copy = seen.setdefault(hash(_content(path)), path) != path
            new = [d for d in result.diagnostics if not is_copy and _is_new(d, seen)]
            result = replace(result, diagnostics=new)
        yield result
        advance(1)


def _is_new(found: Diagnostic, seen: dict[Hashable, Path]) -> bool:
    """Return whether no variant of this script, in its folder, was reported by the same line."""
    path = Path(found.path)
    key = (path.parent, found.snippet.strip())
    return found.code != _ONCE or seen.setdefault(key, path) == path
