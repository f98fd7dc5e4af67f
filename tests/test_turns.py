"""A test that must be alone really is, among processes that run one test after another."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.support.turns import Turns

TESTS, WORKERS = 30, 3


def work(folder: Path, name: str) -> None:
    """Run tests in turns, every third one alone, and log the beginning and the end of each."""
    turns = Turns(folder / "turns")
    for number in range(TESTS):
        alone = number % 3 == 0
        with turns.turn(alone=alone), (folder / "log").open("a", buffering=1) as log:
            log.write(f"begin {name} {alone}\n")
            time.sleep(0.01)
            log.write(f"end {name} {alone}\n")
    turns.close()


def test_nothing_runs_beside_a_test_that_is_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.test_turns", str(tmp_path)]
    workers = [subprocess.Popen([*command, str(name)]) for name in range(WORKERS)]
    assert [worker.wait(timeout=180) for worker in workers] == [0] * WORKERS

    running: dict[str, bool] = {}
    most = 0
    for line in (tmp_path / "log").read_text().splitlines():
        event, name, alone = line.split()
        if event == "begin":
            running[name] = alone == "True"
            most = max(most, len(running))
            assert len(running) == 1 or not any(running.values())
        else:
            del running[name]
    assert most > 1  # the others did run side by side


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2])
