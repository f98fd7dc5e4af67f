"""Every need in tests/REQUIREMENTS.md has a place and a test that exist."""

from __future__ import annotations

import ast
import re

from tests.support.cases import each
from tests.support.docs import ROOT

PAGE = ROOT / "tests/REQUIREMENTS.md"
COUNTS = {"R0": 5, "R1": 7, "R2": 7, "R3": 7, "R4": 10}  # needs of each team
ROWS = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| R")]


def test_no_need_is_missing() -> None:
    expected = [f"{team}.{n}" for team, count in COUNTS.items() for n in range(1, count + 1)]
    assert [row[0].strip("| ") for row in ROWS] == expected


@each("row", ROWS)
def test_its_places_and_tests_exist(row: list[str]) -> None:
    _, _, places, tests = row
    linked = re.findall(r"\]\(([^)]+)\)", places)
    assert linked, places
    for link in linked:
        assert (PAGE.parent / link.partition("#")[0]).is_file(), link
    named = re.findall(r"`(tests/[^`]+)::(\w+)`", tests)
    assert named, tests
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text())
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, (
            f"{file}::{name}"
        )
