"""Ignore findings by comment: ``# halfguard: ignore[HG101]``, or ``# halfguard: ignore`` for all codes."""

from __future__ import annotations

import re

from halfguard.lint.match import Match
from halfguard.lint.source import Source

_COMMENT = re.compile(r"#.*?\bhalfguard:\s*ignore(?:\[([A-Za-z0-9,\s]*)\])?", re.IGNORECASE)
_MAX_LINES = 50


def is_ignored(source: Source, code: str, match: Match) -> bool:
    """Return whether a comment on one of the lines of a match ignores it."""
    last = min(match.span.end_line, match.span.line + _MAX_LINES)
    for number in range(match.span.line, last + 1):
        text = source.line(number)
        if "halfguard" not in text:
            continue
        for found in _COMMENT.finditer(text):
            codes = found.group(1)
            if codes is None or code in {part.strip().upper() for part in codes.split(",")}:
                return True
    return False
