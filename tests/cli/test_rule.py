"""``halfguard rule`` answers for every code that any instrument prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from halfguard.catalogue import all_entries, removed_codes
from halfguard.cli.rule import page_of
from tests.cli.command_result import Run

ROOT = Path(__file__).parents[2]


def test_a_page_says_who_sees_it_why_and_what_to_do() -> None:
    assert page_of("hd106").startswith(
        "# HD106: optimizer-of-other-parameters\n\nThe optimizer has the old parameters of the model.\n\n"
        "*severity warning; seen by `halfguard doctor` at start-up; `halfguard why` in a run of the script*\n"
    )
    assert page_of("HD104").startswith("HD104 is HG402 now.\n\n# HG402: half-weights-trained\n")
    assert page_of("HG116").startswith("HG116 was removed: ")


def test_all_codes_are_listed(halfguard: Run) -> None:
    listed = halfguard("rule").out.splitlines()
    assert [line[:5] for line in listed] == [one.code for one in all_entries()]
    rows = json.loads(halfguard("rule", "--json").out)
    assert [row["code"] for row in rows] == [one.code for one in all_entries()]
    assert halfguard("rule", "HG999").exit_code == 2


@pytest.mark.parametrize(
    ("page", "instrument", "prefixes"),
    [
        ("how-to/ask-the-doctor.md", "doctor", ("HD0",)),
        ("reference/doctor.md", "doctor", ("HD1",)),
        ("reference/probe.md", "probe", ("HG6",)),
    ],
)
def test_the_tables_of_the_docs_have_the_codes(
    page: str, instrument: str, prefixes: tuple[str, ...]
) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    rows = set(re.findall(r"^\| (H[DG]\d{3}) \|", text, re.MULTILINE))
    seen = {one.code for one in all_entries() if instrument in one.seen}
    assert rows <= seen
    assert {code for code in seen if code.startswith(prefixes)} <= rows
    assert not rows & set(removed_codes())
