"""The judged findings: rules that speak by default are right often enough, and the page says so."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halfguard.lint.registry import all_rules

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "lint_truth"
KEYS = {"repository", "code", "path", "line", "message", "verdict", "reason", "today"}


@pytest.fixture(scope="module")
def truth() -> Any:
    loader = importlib.machinery.SourceFileLoader("lint_truth", str(SCRIPT))
    spec = importlib.util.spec_from_loader("lint_truth", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_rules_that_speak_by_default_are_right_often_enough(truth: Any) -> None:
    default = [rule.code for rule in all_rules() if not rule.meta.preview]
    assert [code for code in default if truth.must_be_preview(code)] == []
    assert truth.must_be_preview("HG304")  # the law can forbid


def test_the_page_has_the_table_of_the_judgements() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "table", "--check"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["working", "heldout", "heldout2", "heldout3", "heldout3-fresh"])
def test_judgements_have_a_verdict_and_a_reason_and_no_source(truth: Any, name: str) -> None:
    rows = truth.judgements(name)
    assert rows
    for row in rows:
        assert set(row) <= KEYS
        assert row["verdict"] in truth.VERDICTS
        assert row["reason"]
        assert isinstance(row["today"], bool)
