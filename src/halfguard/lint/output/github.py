"""Findings as workflow commands, which GitHub shows beside the lines of a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from halfguard.lint.run import FileResult

_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def to_github(results: Sequence[FileResult]) -> str:
    """One command a finding."""
    lines = [
        f"::{_LEVELS[f.severity]} file={_property(f.path or '')},line={f.line},col={f.column},"
        f"title={_property(f'{f.code} {f.subject}')}::{_data(f'{f.message} {f.cure}')}"
        for result in results
        for f in (d.finding for d in result.diagnostics)
    ]
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
