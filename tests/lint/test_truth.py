"""The judged findings: rules that speak by default are right often enough, and the page says so."""

from __future__ import annotations

from benchmarks.lint_truth import command as truth

from halfguard.lint.registry import all_rules

KEYS = {"repository", "code", "path", "line", "message", "verdict", "reason", "today"}


def test_rules_that_speak_by_default_are_right_often_enough() -> None:
    assert [rule.code for rule in all_rules() if truth.is_too_often_wrong(rule.code)] == []
    assert truth.is_too_often_wrong("HG304")  # the law can forbid


def test_the_page_has_the_table_of_the_judgements() -> None:
    assert truth.update(check=True) == []


def test_judgements_have_a_verdict_and_a_reason_and_no_source() -> None:
    for name in (
        "working",
        "heldout",
        "heldout2",
        "heldout3",
        "heldout3-fresh",
        "heldout4",
        "heldout5",
        "heldout6",
        "heldout7",
    ):
        rows = truth.judgements(name)
        assert rows, name
        for row in rows:
            assert set(row) <= KEYS
            assert row["verdict"] in truth.VERDICTS
            assert row["reason"]
            assert isinstance(row["today"], bool)
