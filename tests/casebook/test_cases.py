"""Run the casebook's programs: broken ones show their symptom, cured and healthy ones train on.

`python -m tests.casebook.test_cases [NAME...]` runs all of them, or those whose name contains a NAME.
"""

from __future__ import annotations

import hashlib
import operator
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from casebook.split import held_out

BOOK = Path(__file__).parents[2] / "casebook"
FAILING = sorted(path.parent for path in BOOK.glob("[0-9]*/case.yaml"))
HEALTHY = sorted(path.parent for path in (BOOK / "healthy").glob("[0-9]*/case.yaml"))

FRAMEWORKS = {"plain", "lightning", "transformers", "trl", "peft", "accelerate"}
MOMENTS = {"source", "start-up", "run", "comparison"}
KINDS = {"line", "operation", "module", "parameter", "setting", "sample"}
SHOWN_BY_DEFAULT = {
    "nan loss": r"loss['\"]?\W{0,6}nan",
    "inf loss": r"loss['\"]?\W{0,6}inf",
    "scale falls to 0": r"scale\W{0,6}0(\.0)?(?![.\d])",
}
SYMPTOMS = {*SHOWN_BY_DEFAULT, "skips forever", "silent wrong result", "crash", "stall"}
NUMBER = r"[-+]?\d[\d.]*(?:e[-+]?\d+)?"
LOSS = re.compile(rf"(?<!'train_)loss['\"]?[^\w+\-]{{0,6}}({NUMBER})(?![\w.])", re.IGNORECASE)
NOT_FINITE = re.compile(r"(?<![\w-])-?(nan|inf)(?!\w)", re.IGNORECASE)
COMPARE = {"<": operator.lt, ">": operator.gt}
LIMIT = 240  # seconds for one program on a busy machine; they take about 3 to 25


@dataclass(frozen=True)
class Run:
    """What one program printed, and how it ended."""

    code: int
    out: str
    err: str


def read(folder: Path) -> dict[str, Any]:
    facts = yaml.safe_load((folder / "case.yaml").read_text())
    assert isinstance(facts, dict), folder
    return facts


def run(program: Path) -> Run:
    """Run a program in an empty working folder: some write checkpoints."""
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(program)]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    return Run(done.returncode, done.stdout, done.stderr)


def quarter_means(values: list[float]) -> tuple[float, float]:
    size = max(1, len(values) // 4)
    return sum(values[:size]) / size, sum(values[-size:]) / size


def last_figure(pattern: str, out: str) -> float:
    found = re.findall(pattern, out)
    assert found, f"nothing matches {pattern!r} in:\n{out[-2000:]}"
    return float(found[-1])


def holds(bound: str, value: float) -> bool:
    return bool(COMPARE[bound[0]](value, float(bound[1:])))


def check_trains(facts: dict[str, Any], ran: Run) -> None:
    """Ask that a program ended well, printed only finite numbers, and learned."""
    assert ran.code == 0, ran.err[-3000:]
    bad = [line for line in ran.out.splitlines() if NOT_FINITE.search(line)]
    assert not bad, bad[:5]
    if "figure" in facts:
        value = last_figure(facts["figure"]["pattern"], ran.out)
        assert holds(facts["figure"]["cured"], value), f"{value} is not {facts['figure']['cured']}"
        return
    losses = [float(text) for text in LOSS.findall(ran.out)]
    assert len(losses) > 2, f"too few losses: {losses}\n{ran.out[-2000:]}"
    first, last = quarter_means(losses)
    assert last < first, f"loss went from {first} to {last}"


def check_fails(facts: dict[str, Any], ran: Run) -> None:
    """Ask that a broken program shows its symptom."""
    printed = ran.out + ran.err
    crashed = facts["symptom"] == "crash"
    assert (ran.code != 0) == crashed, f"exit {ran.code}\n{printed[-3000:]}"
    if "figure" in facts:
        value = last_figure(facts["figure"]["pattern"], ran.out)
        assert holds(facts["figure"]["broken"], value), (
            f"{value} is not {facts['figure']['broken']}"
        )
    pattern = facts.get("shows", SHOWN_BY_DEFAULT.get(facts["symptom"]))
    assert pattern or "figure" in facts, "neither shows nor figure says how the symptom is seen"
    if pattern:
        assert re.search(pattern, printed, re.IGNORECASE), f"no {pattern!r} in:\n{printed[-3000:]}"


def check_failing(folder: Path) -> None:
    facts = read(folder)
    check_fails(facts, run(folder / "broken.py"))
    cured = run(folder / "cured.py")
    check_trains(facts, cured)
    if "shows" in facts:
        assert not re.search(facts["shows"], cured.out + cured.err, re.IGNORECASE), cured.out[
            -2000:
        ]


def check_healthy(folder: Path) -> None:
    check_trains(read(folder), run(folder / "program.py"))


def sample(folders: list[Path], count: int) -> list[Path]:
    """Choose programs by a hash of their names: the same ones in every run, of no one's choice."""
    return sorted(
        folders, key=lambda path: hashlib.sha256(f"sample {path.name}".encode()).digest()
    )[:count]


@pytest.mark.parametrize("folder", FAILING, ids=lambda path: path.name)
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


@pytest.mark.parametrize("folder", HEALTHY, ids=lambda path: path.name)
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


@pytest.mark.slow
@pytest.mark.parametrize("folder", sample(FAILING, 4), ids=lambda path: path.name)
def test_a_broken_program_fails_and_its_cure_trains(folder: Path) -> None:
    check_failing(folder)


@pytest.mark.slow
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
