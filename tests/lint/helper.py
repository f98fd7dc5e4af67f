"""Fixtures as data: files whose comments say which codes are expected on their lines."""

from __future__ import annotations

import re
from pathlib import Path

from halfguard.lint.engine import lint_bytes
from halfguard.lint.fixes import FixResult, fix_bytes
from halfguard.lint.match import Diagnostic, FixKind
from halfguard.lint.registry import all_rules
from halfguard.lint.settings import Settings

FIXTURES = Path(__file__).parent / "fixtures"
_EXPECT = re.compile(r"#.*?expect: ([HG0-9, ]+)")
PREVIEW = Settings()


def lint(
    text: str | bytes, path: str = "code.py", settings: Settings = PREVIEW
) -> list[Diagnostic]:
    data = text.encode() if isinstance(text, str) else text
    return lint_bytes(data, path, settings, settings.rules())


def codes(text: str | bytes, path: str = "code.py") -> list[str]:
    return [d.code for d in lint(text, path)]


def fix(text: str | bytes, *kinds: FixKind, path: str = "code.py") -> FixResult:
    data = text.encode() if isinstance(text, str) else text
    return fix_bytes(data, path, PREVIEW, all_rules(), kinds or ("safe", "unsafe"))


def expected(text: str) -> set[tuple[int, str]]:
    """(line, code) of every mark in a fixture."""
    return {
        (number, code.strip())
        for number, line in enumerate(text.splitlines(), 1)
        if (found := _EXPECT.search(line))
        for code in found.group(1).split(",")
    }


def found(text: str, path: str) -> set[tuple[int, str]]:
    return {(d.span.line, d.code) for d in lint(text, path)}
