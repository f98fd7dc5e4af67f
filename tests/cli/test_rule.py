"""``halfguard rule`` answers for every code that any instrument prints, and as the docs do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfguard.cli.rule import finding_codes, page_of
from halfguard.errors import UsageError
from halfguard.lint.registry import all_rules

ROOT = Path(__file__).parents[2]


def codes_in_source() -> set[str]:
    files = (ROOT / "src/halfguard").rglob("*.py")
    return {code for file in files for code in re.findall(r"\bH[GD]\d{3}\b", file.read_text())}


def test_every_code_in_the_source_has_a_page() -> None:
    found = codes_in_source()
    assert {"HD001", "HD101", "HD201", "HG101", "HG601"} <= found
    for code in found:
        assert page_of(code).startswith(f"# {code}: ")
        assert page_of(code.lower()) == page_of(code)
    assert set(finding_codes()) <= found  # none is left over


def test_a_finding_is_found_by_its_name_which_no_rule_has() -> None:
    names = [entry["name"] for entry in finding_codes().values()]
    names += [rule.meta.name for rule in all_rules()]
    assert len(names) == len(set(names))
    assert page_of("eps-is-zero") == page_of("HD105")
    with pytest.raises(UsageError, match="no rule HD999") as raised:
        page_of("HD999")
    assert "'halfguard rule' lists them" in raised.value.cure


def test_a_page_says_what_happens_why_and_what_to_do() -> None:
    assert page_of("HD113") == (
        "# HD113: scaler-is-off\n\nA disabled scaler with FP16.\n\n*a finding of `halfguard doctor`*\n\n"
        "## Why\n`GradScaler()` means CUDA, and disables itself without CUDA.\n\n"
        "## What to do\n`torch.amp.GradScaler(device)`.\n"
    )


@pytest.mark.parametrize(
    ("page", "prefix", "columns"),
    [
        ("how-to/ask-the-doctor.md", "HD0", ("problem", "cure")),
        ("reference/doctor.md", "HD1", ("problem", "why", "cure")),
        ("reference/probe.md", "HG6", ("problem", "why", "cure")),
    ],
)
def test_the_tables_of_the_docs_say_the_same(
    page: str, prefix: str, columns: tuple[str, ...]
) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith(f"| {prefix}")]
    assert rows == [
        f"| {code} | {' | '.join(entry[column] for column in columns)} |"
        for code, entry in finding_codes().items()
        if code.startswith(prefix)
    ]
