"""README.md shows what the project has: links that lead somewhere, true numbers, a fresh picture."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from halfguard.lint.registry import all_rules
from tests.guard.test_cost import AT_MOST_ON_DEVICE
from tests.support.cases import each
from tests.support.docs import ROOT

TEXT = (ROOT / "README.md").read_text("utf-8")
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
RAW = REPOSITORY.replace("github.com", "raw.githubusercontent.com") + "/main/"
PICTURES = {"docs/how-to/healed-run.svg": "healed_run"}
LINKS = re.findall(r"\]\(([^)\s]+)\)", TEXT)


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_link_is_absolute() -> None:
    """PyPI shows this page too, and knows no file beside it."""
    assert [link for link in LINKS if not link.startswith("https://")] == []


@each("link", sorted(x for x in set(LINKS) if x.startswith((REPOSITORY, RAW))))
def test_a_link_into_the_repository_leads_to_a_file(link: str) -> None:
    address, _, anchor = link.partition("#")
    for start in (f"{REPOSITORY}/blob/main/", RAW):
        if address.startswith(start):
            file = ROOT / address.removeprefix(start)
            assert file.is_file()
            assert not anchor or anchor in anchors(file)
            return
    if address.startswith(f"{REPOSITORY}/tree/main/"):
        assert (ROOT / address.removeprefix(f"{REPOSITORY}/tree/main/")).is_dir()
        return
    rest = address.removeprefix(REPOSITORY)
    workflow = re.match(r"/actions/workflows/(\w+\.yml)", rest)
    assert rest in {"", "/issues", "/discussions"} or workflow is not None
    assert workflow is None or (ROOT / ".github/workflows" / workflow[1]).is_file()


def test_numbers_are_those_of_their_sources() -> None:
    quickstart = (ROOT / "examples/quickstart.py").read_text().splitlines()
    assert f"[{len(quickstart)} lines]" in TEXT
    instruments = (ROOT / "docs/reference/instruments.md").read_text("utf-8")
    assert f"[{len(all_rules())} rules]" in TEXT
    assert f"[{len(all_rules())} rules]" in instruments
    assert f"at most {AT_MOST_ON_DEVICE} operations" in plain(TEXT)
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [c.rpartition(" ")[2] for c in python if re.search(r":: 3\.\d+$", c)]
    assert f"[Python {versions[0]} to {versions[-1]}]" in TEXT


def test_the_three_lines_have_the_configuration_of_the_last_row() -> None:
    quickstart = (ROOT / "examples/quickstart.py").read_text()
    assert 'retry = {"skip": {"on_nonfinite": "retry_fp32"}}' in quickstart
    assert 'run("FP16, halfguard, healed", batches, config={**retry, "heal": {}})' in quickstart
    assert '{"skip": {"on_nonfinite": "retry_fp32"}, "heal": {}}' in TEXT


def test_the_answer_of_why_is_the_one_that_its_page_shows() -> None:
    """That page's command is run by test_docs.py."""
    (block,) = re.findall(r"^```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert plain(block) in plain((ROOT / "docs/how-to/my-loss-is-nan.md").read_text("utf-8"))


def test_every_pass_stands_beside_its_repeated_steps_and_its_speed() -> None:
    rows = [line for line in TEXT.splitlines() if "**PASS**" in line]
    heads = next(line for line in TEXT.splitlines() if "loss of quality" in line)
    assert heads.endswith("| repeated in FP32 | speed | memory |")
    assert rows
    assert all(re.search(r"\| \d+% \| \d\.\d\d \| \d+% \|$", row) for row in rows)


def test_every_picture_has_a_script_that_makes_it() -> None:
    kinds = (".svg", ".png", ".jpg", ".gif", ".webp")
    found = {p for folder in ("docs", "examples") for p in (ROOT / folder).rglob("*")}
    pictures = {p.relative_to(ROOT).as_posix() for p in found if p.suffix in kinds}
    assert pictures == set(PICTURES)


@pytest.mark.slow
@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_is_that_of_its_script_and_the_text_beside_it_too(picture: str) -> None:
    command = [sys.executable, "-m", "benchmarks.tables", "--check", PICTURES[picture]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    drawn = re.findall(r">(torch\.amp|halfguard): ([\w.-]+)", (ROOT / picture).read_text("utf-8"))
    (told,) = re.findall(rf"!\[(.*?)\]\({re.escape(RAW + picture)}\)", TEXT)
    assert len(drawn) == 6
    assert {number for _, number in drawn} - set(re.findall(r"[\w.-]+", told)) == {"8192"}
