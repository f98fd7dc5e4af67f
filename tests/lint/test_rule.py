"""Texts that a file must contain before it is parsed: they spare time, and change no finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfguard.lint.engine import lint_bytes
from halfguard.lint.numeric_checks import LARGE_CONSTANTS
from halfguard.lint.registry import all_rules
from halfguard.lint.rule import ByteSearch, Rule
from tests.lint.helper import FIXTURES, PREVIEW
from tests.lint.test_missed import MISSED

SOURCES = {
    **{str(p.relative_to(FIXTURES)): p.read_bytes() for p in sorted(FIXTURES.rglob("*.py"))},
    **{name: text.encode() for name, (text, _) in MISSED.items()},
}


def _unfiltered(rule: Rule) -> Rule:
    """Return a rule that checks every file."""
    meta = replace(rule.meta, in_one_definition=False)
    return replace(rule, meta=meta, contains=(b"",), also_contains=(), pattern=b"")


def test_the_texts_change_no_finding() -> None:
    every = tuple(map(_unfiltered, all_rules()))
    for name, data in SOURCES.items():
        filtered = lint_bytes(data, "code.py", PREVIEW, all_rules())
        assert filtered == lint_bytes(data, "code.py", PREVIEW, every), name


def test_texts_of_one_definition_are_found_together_with_module_level_code() -> None:
    texts = (b"sqrt(", b"mean(", b"LIMIT")
    data = b"LIMIT = 1\n\ndef f(x):\n    return sqrt(x)\n\nclass A:\n    def g(self):\n        mean(1)\n"
    first, second = ByteSearch(data).definitions
    assert [first.contains_any((t,)) for t in texts] == [True, False, True]
    assert [second.contains_any((t,)) for t in texts] == [False, True, True]
    assert [d.contains_any((b"x",)) for d in ByteSearch(b"x = 1\n").definitions] == [True]


@pytest.mark.parametrize(
    ("text", "large"),
    [
        ("-1e9", True), ("1.e5", True), ("1e+30", True), ("1e4", False), ("image10", False),
        ("70000", True), ("100000.0", True), ("10000.0", False), ("65536", True), ("65_504", True),
        ("1_000_000", True), ("2 ** 16", True), ("2**15", False), ("finfo(torch.float32).min", True),
        ("finfo(torch.float).min", True), ("finfo(torch.float16).min", False), ("fe5", False),
    ],
)  # fmt: skip
def test_spellings_of_large_constants(text: str, large: bool) -> None:
    assert ByteSearch(f"x = {text}\n".encode()).matches(LARGE_CONSTANTS.encode()) is large
