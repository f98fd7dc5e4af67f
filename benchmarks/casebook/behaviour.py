"""How the programs of a case behave: a broken one shows its symptom, a cured or healthy one trains."""

from __future__ import annotations

import operator
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHOWN_BY_DEFAULT = {
    "nan loss": r"loss['\"]?\W{0,6}nan",
    "inf loss": r"loss['\"]?\W{0,6}inf",
    "scale falls to 0": r"scale\W{0,6}0(\.0)?(?![.\d])",
}
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


def python_for(program: Path) -> str:
    """Return the Python that runs a program."""
    return sys.executable


def run(program: Path) -> Run:
    """Run a program in an empty working folder: some write checkpoints."""
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [python_for(program), str(program)]
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


def check_cured(facts: dict[str, Any], ran: Run) -> None:
    """Ask that a cured program trains, and does not show the symptom."""
    check_trains(facts, ran)
    if "shows" in facts:
        printed = ran.out + ran.err
        assert not re.search(facts["shows"], printed, re.IGNORECASE), printed[-2000:]
