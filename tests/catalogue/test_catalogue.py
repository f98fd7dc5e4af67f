"""Every code that an instrument prints has one entry, which names the instruments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfguard import catalogue
from halfguard.catalogue import Entry, all_entries, entry, old_codes, removed_codes
from halfguard.errors import UsageError
from halfguard.lint.registry import all_rules
from halfguard.records import Cause, HealthWarning
from tests.repairs.test_before_after import REPAIRS
from tests.support.cases import each

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "doctor": ("diagnosis", "hardware"),
    "probe": ("probing",),
    "why": ("investigation",),
    "guard": ("guard",),
}
CODE = re.compile(r"\bH[GD]\d{3}\b")


def codes_of(*folders: str) -> set[str]:
    """Return the codes that the source of some packages names outside of comments and docstrings."""
    files = [f for folder in folders for f in (ROOT / "src/halfguard" / folder).rglob("*.py")]
    return {code for f in files for code in re.findall(r'"(H[GD]\d{3})"', f.read_text("utf-8"))}


def test_every_code_in_the_source_has_an_entry() -> None:
    files = [f for f in (ROOT / "src/halfguard").rglob("*.py") if "catalogue" not in f.parts]
    named = {code for f in files for code in CODE.findall(f.read_text("utf-8"))}
    assert named <= {one.code for one in all_entries()}


def test_an_entry_names_the_instruments_that_print_it() -> None:
    printed = {name: codes_of(*folders) for name, folders in FOLDERS.items()}
    printed["lint"] = {rule.code for rule in all_rules()}
    printed["guard"] |= {one.code for one in (*Cause, *HealthWarning)} | {"HG609"}  # the audit
    for one in all_entries():
        assert set(one.seen) == {name for name, codes in printed.items() if one.code in codes}, (
            one.code
        )


def test_names_are_unique_and_old_codes_are_not_used_again() -> None:
    entries = all_entries()
    assert len({one.name for one in entries}) == len(entries)
    codes = {one.code for one in entries}
    assert not codes & {*old_codes(), *removed_codes()}
    assert not {*old_codes()} & {*removed_codes()}
    named = {code for text in removed_codes().values() for code in CODE.findall(text)}
    assert named <= codes


@each("one", all_entries())
def test_an_entry_is_whole(one: Entry) -> None:
    assert one.title.endswith(".")
    assert one.cure
    assert one.seen
    assert "## Why is this bad?" in one.page
    by_runs = {"fp32_lines", "stable_composition", "stable_operation"}
    assert set(one.repairs) <= {*REPAIRS, *by_runs}
    assert set(CODE.findall(one.page)) <= {other.code for other in all_entries()}


def test_an_entry_is_found_by_code_old_code_and_name() -> None:
    assert catalogue.find("hg401") is catalogue.find("HD102") is entry("HG401")
    assert catalogue.find("clip-before-unscale") is entry("HG201")
    with pytest.raises(UsageError, match="HG116 was removed"):
        catalogue.find("HG116")
    with pytest.raises(UsageError, match="HD999 is not a code"):
        catalogue.find("HD999")
