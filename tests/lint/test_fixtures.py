"""Every rule against its files: the marked lines are found, and no others."""

from __future__ import annotations

from pathlib import Path

from halfguard.lint.registry import all_rules
from tests.lint.helper import FIXTURES, expected, found
from tests.support.cases import each

FILES = sorted(FIXTURES.rglob("*.*"))


@each("path", FILES)
def test_fixture(path: Path) -> None:
    text = path.read_text()
    assert found(text, path.name) == expected(text)


@each("path", [p for p in FILES if p.stem.startswith("good")])
def test_a_good_file_has_no_mark(path: Path) -> None:
    assert not expected(path.read_text())


def test_every_rule_has_a_positive_and_a_negative_file() -> None:
    assert len(all_rules()) >= 20
    for rule in all_rules():
        names = [p.stem for p in (FIXTURES / rule.code).iterdir()]
        assert any(n.startswith("good") for n in names), rule.code
        bad = [p for p in (FIXTURES / rule.code).iterdir() if p.stem.startswith("bad")]
        assert bad, rule.code
        for path in bad:
            assert rule.code in {code for _, code in expected(path.read_text())}, path
