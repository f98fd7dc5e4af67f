"""A baseline: the findings that an old project has today, so that only new ones are reported.

A finding is recognized by its file, its code and the text of its line, not by its line number, so that code
above it may change. If the same line occurs several times, as many findings are accepted as there were.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.lint.diagnostic import Diagnostic
from halfguard.lint.run import FileResult

_Key = tuple[str, str, str]
_VERSION = 1


def write_baseline(path: Path, results: Sequence[FileResult]) -> int:
    """Write the findings of a run as a baseline, and return their number."""
    counts = Counter(_key(d, path) for result in results for d in result.diagnostics)
    rows = [
        {"path": file, "code": code, "line": line, "count": count}
        for (file, code, line), count in sorted(counts.items())
    ]
    path.write_text(json.dumps({"version": _VERSION, "findings": rows}, indent=1) + "\n", "utf-8")
    return sum(counts.values())


def without_baseline(path: Path, results: Sequence[FileResult]) -> list[FileResult]:
    """Return the results without the findings that a baseline accepts."""
    accepted = _read(path)
    return [
        replace(result, diagnostics=_new(result.diagnostics, accepted, path)) for result in results
    ]


def _new(found: list[Diagnostic], accepted: Counter[_Key], path: Path) -> list[Diagnostic]:
    kept = []
    for diagnostic in found:
        key = _key(diagnostic, path)
        if accepted[key] > 0:
            accepted[key] -= 1
        else:
            kept.append(diagnostic)
    return kept


def _key(diagnostic: Diagnostic, baseline: Path) -> _Key:
    """Return path, code and line of a finding; the path is relative to the baseline, as in a repository."""
    file = Path(diagnostic.path).absolute()
    root = baseline.absolute().parent
    name = file.relative_to(root).as_posix() if file.is_relative_to(root) else file.as_posix()
    return name, diagnostic.code, diagnostic.snippet.strip()


def _read(path: Path) -> Counter[_Key]:
    try:
        body = json.loads(path.read_text("utf-8"))
        rows = [(r["path"], r["code"], r["line"], int(r["count"])) for r in body["findings"]]
        version = body["version"]
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no baseline {path}.",
            cure="Write it with --write-baseline; commit it beside the project's settings.",
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a baseline: {error}.") from error
    if version != _VERSION:
        raise UsageError(f"{path} has version {version}; this halfguard reads version {_VERSION}.")
    return Counter({(file, code, line): count for file, code, line, count in rows})
