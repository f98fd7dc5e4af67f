"""Results of files that have not changed, by a digest of their content.

A result depends on the content and path of a file, on the settings, on how the project trains, and on lint
itself. All of these are part of its key, so an entry is never out of date. Entries that a run did not use are
dropped. A cache that cannot be read or written is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from halfguard.lint.diagnostic import Diagnostic
from halfguard.lint.match import Edit, Fix, Span
from halfguard.lint.project import Project
from halfguard.lint.settings import Settings

FOLDER = ".halfguard_cache"
_VERSION = 1


class Cache:
    """Findings and project facts of earlier runs, in one file."""

    def __init__(self, root: Path) -> None:
        self.path = root / FOLDER / "lint.json"
        self._lint = _digest_of_lint()
        self._old = self._load()
        self._new: dict[str, Any] = {}

    def _load(self) -> dict[str, Any]:
        try:
            body = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        valid = isinstance(body, dict) and body.get("lint") == [_VERSION, self._lint]
        entries = body.get("entries") if valid else None
        return entries if isinstance(entries, dict) else {}

    def get(self, key: str) -> Any:
        """Return an entry, or None; it is kept for the next run."""
        value = self._old.get(key)
        if value is not None:
            self._new[key] = value
        return value

    def put(self, key: str, value: Any) -> None:
        self._new[key] = value

    def save(self) -> None:
        """Write the entries of this run, if they differ from those before."""
        if self._new == self._old:
            return
        body = json.dumps({"lint": [_VERSION, self._lint], "entries": self._new})
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            (self.path.parent / ".gitignore").write_text("*\n", "utf-8")
            new = self.path.with_suffix(f".{os.getpid()}")
            new.write_text(body, "utf-8")
            new.replace(self.path)


def _digest_of_lint() -> str:
    """Return a digest of lint's own files, by their sizes and times."""
    folder = Path(__file__).parent
    stats = [(p.name, p.stat()) for p in sorted(folder.rglob("*.py"))]
    text = repr([(name, s.st_size, s.st_mtime_ns) for name, s in stats])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def digest(data: bytes) -> str:
    """Return the digest of a file's content."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def digest_of_run(settings: Settings, project: Project) -> str:
    """Return the digest of everything but the file that a result depends on."""
    return digest(repr((settings, project)).encode())


def to_rows(found: list[Diagnostic]) -> list[list[Any]]:
    """Return findings as lists that JSON can hold."""
    return [
        [d.code, d.message, d.severity, d.column, d.end_column, d.subject, d.cure, _span(d.span),
         d.snippet, _fix(d.fix), d.cell]
        for d in found
    ]  # fmt: skip


def from_rows(rows: list[list[Any]], path: str) -> list[Diagnostic]:
    """Return the findings of a file from the lists of ``to_rows``."""
    return [
        Diagnostic(code, message, severity, path, column, end, subject, cure, Span(*span), snippet,
                   _read_fix(fix), cell)
        for code, message, severity, column, end, subject, cure, span, snippet, fix, cell in rows
    ]  # fmt: skip


def _span(span: Span) -> list[int]:
    return [span.line, span.column, span.end_line, span.end_column]


def _fix(fix: Fix | None) -> list[Any] | None:
    if fix is None:
        return None
    return [fix.kind, [[_span(e.span), e.text] for e in fix.edits], list(fix.imports)]


def _read_fix(body: list[Any] | None) -> Fix | None:
    if body is None:
        return None
    kind, edits, imports = body
    return Fix(kind, tuple(Edit(Span(*span), text) for span, text in edits), tuple(imports))
