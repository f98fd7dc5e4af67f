"""The page of a rule: its headings, and examples that behave as they say."""

from __future__ import annotations

import re

from halfguard.catalogue import entry
from halfguard.formats import FP16
from halfguard.lint.registry import all_rules
from halfguard.lint.rule import Rule
from halfguard.lint.rules.constants import OVERFLOW, UNDERFLOW
from tests.lint.helper import codes
from tests.support.cases import each

HEADINGS = ["What it does", "Why is this bad?", "Example", "Use instead"]


@each("rule", all_rules())
def test_examples_are_found_and_their_cures_are_not(rule: Rule) -> None:
    failure = entry(rule.code)
    assert "lint" in failure.seen
    found = re.findall(r"^## (.+)$", failure.page, re.MULTILINE)
    assert found[:4] == HEADINGS
    assert set(found[4:]) <= {"At run time", "Fix safety", "References"}
    assert ("Fix safety" in found) == bool(failure.fix)
    example, instead = re.findall(r"```py\n(.*?)```", failure.page, re.DOTALL)
    assert set(codes(example)) == {rule.code}
    assert codes(instead) == []


def test_the_limits_are_those_of_the_format() -> None:
    """Float16 rounds to infinity and to zero exactly at these two numbers."""
    assert FP16.round(OVERFLOW) == float("inf")
    assert FP16.round(OVERFLOW * (1 - 2**-50)) == FP16.largest
    assert FP16.round(UNDERFLOW) == 0
    assert FP16.round(UNDERFLOW * (1 + 2**-50)) > 0
