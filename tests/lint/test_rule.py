"""Texts that a file must contain before it is parsed: they spare time, and change no finding."""

from __future__ import annotations

from dataclasses import replace

from halfguard.lint.engine import lint_bytes
from halfguard.lint.registry import all_rules
from halfguard.lint.rule import ByteSearch, Rule
from halfguard.lint.rules.constants import LARGE_CONSTANTS, SMALL_CONSTANTS
from tests.lint.helper import FIXTURES, PREVIEW
from tests.lint.test_missed import MISSED
from tests.support.cases import each

SOURCES = {
    **{str(p.relative_to(FIXTURES)): p.read_bytes() for p in sorted(FIXTURES.rglob("*.py"))},
    **{name: text.encode() for name, (text, _) in MISSED.items()},
}


def _unfiltered(rule: Rule) -> Rule:
    """Return a rule that checks every file."""
    return replace(rule, contains=(b"",), also_contains=(), pattern=b"")


def test_the_texts_change_no_finding() -> None:
    every = tuple(map(_unfiltered, all_rules()))
    for name, data in SOURCES.items():
        filtered = lint_bytes(data, "code.py", PREVIEW, all_rules())
        assert filtered == lint_bytes(data, "code.py", PREVIEW, every), name


@each(
    ("text", "large"),
    [
        ("-1e9", True), ("-1E9", True), ("1.e5", True), ("1e+30", True), ("7e04", True), ("1e3", False),
        ("image10", False), ("70000", True), ("100000.0", True), ("1000.0", False), ("65536", True),
        ("-99999", True), ("-987654", True), ("65_504", True), ("1_000_000", True), ("2 ** 16", True),
        ("10**9", True), ("x ** 2", False), ("finfo(torch.float32).min", True), ("fe5", False),
        ("finfo(torch.float).min", True), ("finfo(torch.float16).min", False),
    ],
)  # fmt: skip
def test_spellings_of_large_constants(text: str, large: bool) -> None:
    assert ByteSearch(f"x = {text}\n".encode()).matches(LARGE_CONSTANTS.encode()) is large


@each("text", ["1e-8", "1E-8", "1e-08", "1e-12", "10**-8", "10 ** -9", "0.00000001"])
def test_spellings_of_small_constants(text: str) -> None:
    assert ByteSearch(f"x = {text}\n".encode()).matches(SMALL_CONSTANTS.encode())
