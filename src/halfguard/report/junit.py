"""A verdict as JUnit XML: one test per candidate, so that any CI system shows which one fails and why."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from halfguard.records.verdict import Comparison, Verdict, VerdictLabel
from halfguard.report.blocks import clean


def to_junit(verdict: Verdict) -> str:
    """Return the file as text; every verdict other than PASS is a failure, as for the exit code."""
    failures = sum(comparison.word is not VerdictLabel.PASS for comparison in verdict.comparisons)
    counts = f'tests="{len(verdict.comparisons)}" failures="{failures}" errors="0"'
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="halfguard" {counts}>',
        f'<testsuite name="{_text(verdict.study)}" {counts}>',
        f'<properties><property name="evidence" value="{_text(verdict.evidence)}"/></properties>',
        *(line for row in verdict.comparisons for line in _case(verdict, row)),
        "</testsuite>",
        "</testsuites>",
    ]
    return "\n".join(parts) + "\n"


def _case(verdict: Verdict, row: Comparison) -> Iterator[str]:
    name = f'classname="{_text(verdict.study)}" name="{_text(row.candidate)}"'
    if row.word is VerdictLabel.PASS:
        yield f"<testcase {name}><system-out>{_text(row.reason)}</system-out></testcase>"
        return
    attributes = f'type="{row.word}" message="{_text(f"{row.word}: {row.reason}")}"'
    yield f"<testcase {name}><failure {attributes}>{_text(row.reason)}</failure></testcase>"


def _text(text: str) -> str:
    return escape(clean(text).replace("\n", " ").replace("\t", " "))
