"""Run the casebook's programs: broken ones show their symptom, cured and healthy ones train on.

`python -m tests.casebook.test_cases [NAME...]` runs all of them, or those whose name contains a NAME.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.casebook import behaviour
from benchmarks.casebook.behaviour import (
    SHOWN_BY_DEFAULT,
    check_cured,
    check_fails,
    check_trains,
    run,
)
from benchmarks.casebook.split import held_out

from tests.support.cases import each
from tests.support.forks import forked_python, group_of

BOOK = Path(__file__).parents[2] / "benchmarks/casebook/programs"
FAILING = sorted(path.parent for path in BOOK.glob("[0-9]*/case.yaml"))
HEALTHY = sorted(path.parent for path in (BOOK / "healthy").glob("[0-9]*/case.yaml"))

FRAMEWORKS = {"plain", "lightning", "transformers", "trl", "peft", "accelerate"}
MOMENTS = {"source", "start-up", "run", "comparison"}
KINDS = {"line", "operation", "module", "parameter", "setting", "sample"}
SYMPTOMS = {*SHOWN_BY_DEFAULT, "skips forever", "silent wrong result", "crash", "stall"}


def read(folder: Path) -> dict[str, Any]:
    facts = yaml.safe_load((folder / "case.yaml").read_text())
    assert isinstance(facts, dict), folder
    return facts


def check_failing(folder: Path) -> None:
    facts = read(folder)
    check_fails(facts, run(folder / "broken.py"))
    check_cured(facts, run(folder / "cured.py"))


def check_healthy(folder: Path) -> None:
    check_trains(read(folder), run(folder / "program.py"))


def sample(folders: list[Path], count: int) -> list[Path]:
    """Choose programs by a hash of their names: the same ones in every run, of no one's choice."""
    return sorted(
        folders, key=lambda path: hashlib.sha256(f"sample {path.name}".encode()).digest()
    )[:count]


@each("folder", FAILING)
def test_a_failing_case_is_described(folder: Path) -> None:
    facts = read(folder)
    assert facts["title"]
    assert facts["cure"]
    assert facts["failure"] == "new" or 1 <= facts["failure"] <= 35
    assert facts["thread"] is None or facts["thread"].startswith("https://")
    assert facts["framework"] in FRAMEWORKS
    assert facts["seen_first"] in MOMENTS
    assert facts["symptom"] in SYMPTOMS
    assert facts["fp32"] in {"fine", "fails"}
    assert isinstance(facts["needs"], list)
    assert facts["seconds"] > 0
    culprit = facts["culprit"]
    assert culprit["kind"] in KINDS
    assert set(culprit) <= {"kind", "line", "operation", "module"}
    broken = (folder / "broken.py").read_text()
    lines = [line.strip() for line in broken.splitlines()]
    assert lines.count(culprit["line"]) == 1, culprit["line"]
    assert 15 <= len([line for line in lines if line]) <= 80
    assert broken != (folder / "cured.py").read_text()


@each("folder", HEALTHY)
def test_a_healthy_program_is_described(folder: Path) -> None:
    facts = read(folder)
    assert facts["title"]
    assert facts["looks_dangerous"]
    assert facts["framework"] in FRAMEWORKS
    assert len((folder / "program.py").read_text().splitlines()) <= 90


def test_about_a_third_is_held_out() -> None:
    names = [folder.name for folder in FAILING + HEALTHY]
    assert len(names) == len(set(names))
    share = sum(map(held_out, names)) / len(names)
    assert 0.2 < share < 0.47


@pytest.fixture
def in_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs in forks of a process that has imported their framework."""

    def python_for(program: Path) -> str:
        return forked_python(group_of(program.read_text("utf-8")))

    monkeypatch.setattr(behaviour, "python_for", python_for)


@pytest.mark.slow
@pytest.mark.usefixtures("in_forks")
@pytest.mark.parametrize("folder", sample(FAILING, 4), ids=lambda path: path.name)
def test_a_broken_program_fails_and_its_cure_trains(folder: Path) -> None:
    check_failing(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("in_forks")
@pytest.mark.parametrize("folder", sample(HEALTHY, 2), ids=lambda path: path.name)
def test_a_healthy_program_trains(folder: Path) -> None:
    check_healthy(folder)


def main(wanted: list[str]) -> int:
    failed = []
    for folder in FAILING + HEALTHY:
        if wanted and not any(name in folder.name for name in wanted):
            continue
        try:
            if folder in FAILING:
                test_a_failing_case_is_described(folder)
                check_failing(folder)
            else:
                test_a_healthy_program_is_described(folder)
                check_healthy(folder)
        except (AssertionError, subprocess.TimeoutExpired, KeyError) as error:
            failed.append(folder.name)
            print(f"FAILED  {folder.name}\n{error!s}", flush=True)
        else:
            print(f"ok      {folder.name}", flush=True)
    print(f"{len(failed)} failed: {' '.join(failed)}" if failed else "all as described")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
