"""Ignore findings by comment.

``# halfguard: ignore[HG101]`` and ``# noqa: HG101`` ignore these codes on their line; ``# halfguard: ignore``
and ``# noqa`` ignore all of them.
"""

from __future__ import annotations

import re

from halfguard.lint.match import Match
from halfguard.lint.source import Source

_COMMENT = re.compile(r"#.*?\bhalfguard:\s*ignore(?:\[([A-Za-z0-9,\s]*)\])?", re.IGNORECASE)
# As in flake8 and ruff: a colon begins a list of codes, and anything else after the word is a comment.
_NOQA = re.compile(r"#\s*noqa(?::\s*([A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)
_SEPARATOR = re.compile(r"[,\s]+")
_MAX_LINES = 50


def is_ignored(source: Source, code: str, match: Match) -> bool:
    """Return whether a comment on one of the lines of a match ignores it."""
    last = min(match.span.end_line, match.span.line + _MAX_LINES)
    return any(_ignores(source.line(n), code) for n in range(match.span.line, last + 1))


def _ignores(line: str, code: str) -> bool:
    if "#" not in line:
        return False
    for pattern, word in ((_COMMENT, "halfguard"), (_NOQA, "noqa")):
        if word not in line.lower():
            continue
        for found in pattern.finditer(line):
            listed = found.group(1)
            if listed is None or code in _SEPARATOR.split(listed.strip().upper()):
                return True
    return False
