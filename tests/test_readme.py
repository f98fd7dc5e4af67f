"""README.md is short and shows what the project has: links that lead somewhere, a fresh picture."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from benchmarks.tables.sections import rows_of_section

from halfguard.lint.registry import all_rules
from tests.guard.test_cost import AT_MOST_ON_DEVICE
from tests.support.cases import each
from tests.support.docs import ROOT

TEXT = (ROOT / "README.md").read_text("utf-8")
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
PICTURES = {"docs/how-to/healed-run.svg": "healed_run"}
LINKS = re.findall(r"\]\(([^)\s]+)\)", TEXT)


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_it_is_a_screen_and_a_half() -> None:
    assert len(TEXT.splitlines()) <= 90


@each("link", sorted(set(LINKS)))
def test_a_link_leads_to_a_file(link: str) -> None:
    address, _, anchor = link.partition("#")
    file = ROOT / address
    assert file.is_file()
    assert not anchor or anchor in anchors(file)


def test_the_address_of_the_repository_is_called_an_assumption_once() -> None:
    home = REPOSITORY.removeprefix("https://")
    assert TEXT.count(home) == 1
    assert "assume" in plain(TEXT).partition(home)[2][:100]
    assert "There is no release on PyPI yet" in plain(TEXT)


def test_numbers_of_the_docs_are_those_of_their_sources() -> None:
    commands = (ROOT / "docs/how-to/which-command.md").read_text("utf-8")
    assert f"[{len(all_rules())} rules]" in commands
    step = (ROOT / "docs/explanation/guarded-step.md").read_text("utf-8")
    assert f"on an accelerator at most {AT_MOST_ON_DEVICE} |" in step


def test_the_three_lines_have_the_configuration_of_the_last_row() -> None:
    quickstart = (ROOT / "examples/quickstart.py").read_text()
    assert 'retry = {"skip": {"on_nonfinite": "retry_fp32"}}' in quickstart
    assert 'run("FP16, halfguard, healed", batches, config={**retry, "heal": {}})' in quickstart
    assert '{"skip": {"on_nonfinite": "retry_fp32"}, "heal": {}}' in TEXT


def test_a_table_of_five_rows_compares() -> None:
    rows = rows_of_section((ROOT / "README.md", "casebook"))
    assert [len(row) for row in rows] == [5] * 5
    assert rows[0][0] == "**halfguard**"


def test_every_pass_stands_next_to_its_repeated_steps_its_time_and_its_memory() -> None:
    lines = (ROOT / "docs/explanation/results.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if "**PASS**" in line]
    heads = next(line for line in lines if "FP16 healed: degradation" in line)
    assert re.search(r"\| repeated in FP32 \| time: [^|]+ \| memory: [^|]+ \|$", heads)
    assert rows
    assert all(
        re.search(r"\| \d+%( \| \d\.\d\d, \d\.\d\d)( \| \d+%, \d+%, \d+%) \|$", row) for row in rows
    )


def test_every_picture_has_a_script_that_makes_it() -> None:
    kinds = (".svg", ".png", ".jpg", ".gif", ".webp")
    found = {p for folder in ("docs", "examples") for p in (ROOT / folder).rglob("*")}
    pictures = {p.relative_to(ROOT).as_posix() for p in found if p.suffix in kinds}
    assert pictures == set(PICTURES)


def test_a_phone_shows_the_text_of_the_picture_in_readable_size() -> None:
    """On a phone of 390 pixels, 14 pixels of a picture of 480 are 11."""
    (picture,) = PICTURES
    drawn = (ROOT / picture).read_text("utf-8")
    (width,) = re.findall(r'^<svg [^>]*width="(\d+)"', drawn)
    sizes = re.findall(r"font(?:-size)?:(\d+)px", drawn)
    assert min(map(int, sizes)) * min(1, 390 / int(width)) > 11


@pytest.mark.slow
@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_is_that_of_its_script_and_the_text_of_it_too(picture: str) -> None:
    command = [sys.executable, "-m", "benchmarks.tables", "--check", PICTURES[picture]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    drawn = re.findall(r">(torch\.amp|halfguard): ([\w.-]+)", (ROOT / picture).read_text("utf-8"))
    (told,) = re.findall(rf"!\[(.*?)\]\({re.escape(picture)}\)", TEXT)
    assert len(drawn) == 6
    assert {number for _, number in drawn} - set(re.findall(r"[\w.-]+", told)) == {"8192"}
