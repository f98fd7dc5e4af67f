"""Findings as workflow commands, which GitHub shows next to the lines of a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from halfguard.lint.run import FileResult

_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def to_github(results: Sequence[FileResult]) -> str:
    """Return one workflow command per finding."""
    lines = [
        f"::{_LEVELS[f.severity]} file={_escape_property(f.path)},line={f.line},col={f.column},"
        f"title={_escape_property(f'{f.code} {f.subject}')}::{_escape_data(f'{f.message} {f.cure}')}"
        for result in results
        for f in result.diagnostics
    ]
    return "".join(f"{line}\n" for line in lines)


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
