"""``halfguard lint`` and ``halfguard rule`` from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from halfguard.catalogue import all_entries, removed_codes
from halfguard.cli.rule import page_of
from tests.cli.command_result import Run, in_a_process
from tests.support.docs import ROOT

pytestmark = pytest.mark.usefixtures("seed")  # rich draws from Python's random generator
BAD = "import torch\n\n\ndef f(x, m):\n    return x.masked_fill(m, -1e9).softmax(-1)  # mask\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(BAD)
    return path


def test_findings_are_exit_code_1(halfguard: Run, script: Path) -> None:
    done = halfguard("lint", script)
    assert (done.exit_code, done.err) == (1, "")
    assert "HG101" in done.out
    assert "^^^^" in done.out


def test_nothing_is_exit_code_0(halfguard: Run, tmp_path: Path) -> None:
    done = halfguard("lint", tmp_path)
    assert (done.exit_code, done.out) == (0, "No problems in 0 files.\n")


@pytest.mark.slow
def test_diff_shows_and_fix_writes(halfguard: Run, script: Path) -> None:
    shown = halfguard("lint", script, "--diff")
    assert shown.exit_code == 1
    assert (
        "+    return x.masked_fill(m, torch.finfo(x.dtype).min).softmax(-1)  # mask\n" in shown.out
    )
    assert script.read_text() == BAD
    fixed = halfguard("lint", script, "--fix")
    assert fixed.exit_code == 0
    assert "Applied 1 fix." in fixed.out
    assert script.read_text() == BAD.replace("-1e9", "torch.finfo(x.dtype).min")
    assert halfguard("lint", script, "--diff").exit_code == 0


def test_stdin() -> None:
    done = in_a_process("lint", "-", "--json", stdin=BAD)
    assert done.exit_code == 1
    (row,) = json.loads(done.out)
    assert (row["code"], row["path"], row["line"], row["column"]) == ("HG101", "stdin.py", 5, 29)
    fixed = in_a_process("lint", "-", "--fix", stdin=BAD)
    assert (fixed.exit_code, "finfo" in fixed.out) == (0, True)


def test_select_and_sarif(halfguard: Run, script: Path) -> None:
    assert halfguard("lint", script, "--select", "HG2").exit_code == 0
    assert halfguard("lint", script, "--ignore", "hg101").exit_code == 0
    body = json.loads(halfguard("lint", script, "--format", "sarif").out)
    assert body["runs"][0]["results"][0]["ruleId"] == "HG101"


def test_a_rule_prints_its_page(halfguard: Run) -> None:
    done = halfguard("rule", "hg101")
    assert done.exit_code == 0
    assert done.out.startswith("# HG101: mask-constant\n")
    assert "## Why is this bad?" in done.out
    assert halfguard("rule", "mask-constant").out == done.out
    assert "HG201" in halfguard("rule").out
    assert json.loads(halfguard("rule", "HG101", "--json").out)["fix"] == "safe"


def test_a_removed_rule_is_answered_in_one_line(halfguard: Run) -> None:
    done = halfguard("rule", "hg407")
    said = "HG407 was removed: doctor's HD115 checks the actual training arguments."
    assert (done.exit_code, done.out) == (0, f"{said}\n")


# -- ``halfguard rule`` answers for every code that any instrument prints


def test_a_page_says_who_sees_it_why_and_what_to_do() -> None:
    assert page_of("hd106").startswith(
        "# HD106: optimizer-of-other-parameters\n\n"
        "The optimizer holds parameters that the model no longer uses.\n\n"
        "*severity warning; seen by `halfguard doctor` at start-up; `halfguard why` in a run of the script*\n"
    )
    assert page_of("HD104").startswith("HD104 is HG402 now.\n\n# HG402: half-weights-trained\n")
    assert page_of("HG116").startswith("HG116 was removed: ")


def test_all_codes_are_listed(halfguard: Run) -> None:
    listed = halfguard("rule").out.splitlines()
    assert [line[:5] for line in listed] == [one.code for one in all_entries()]
    rows = json.loads(halfguard("rule", "--json").out)
    assert [row["code"] for row in rows] == [one.code for one in all_entries()]


@pytest.mark.parametrize(
    ("page", "instrument", "prefixes"),
    [
        ("how-to/doctor.md", "doctor", ("HD0",)),
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
