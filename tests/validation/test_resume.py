"""``kill -9`` at any moment: the study goes on, loses no run, and is the study that was never killed.

``python -m tests.validation.test_resume [KILLS]`` (``scripts/soak validate``) kills as often as it is told.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from halfguard.records.study import Study
from halfguard.validation.executors.local import LocalExecutor
from halfguard.validation.study import run_study
from tests.validation.helper import HereExecutor, all_gone, all_numbers, spec_of

pytestmark = pytest.mark.slow
SPEC = spec_of("slow", steps=8)
SWEEP = "import sys; from tests.validation.test_resume import sweep; sweep(sys.argv[1])"


def sweep(folder: str) -> None:
    """Run the study that is killed, in a process of its own."""
    run_study(SPEC, folder, LocalExecutor(2))


@dataclass
class Killing:
    """Sweeps that are killed at random moments, each resumed until it is complete."""

    folder: Path
    rng: random.Random
    reference: list[str]
    longest: float  # seconds until a kill
    kills: int = 0
    sweeps: int = 0
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def study(self) -> Path:
        return self.folder / str(self.sweeps)

    def start(self) -> subprocess.Popen[bytes]:
        started = str(self.folder / "started")
        environment = os.environ | {
            "HALFGUARD_TEST_STARTED": started,
            "HALFGUARD_TEST_SLEEP": "0.05",
        }
        command = [sys.executable, "-c", SWEEP, str(self.study)]
        return subprocess.Popen(command, env=environment)

    def results(self) -> dict[str, tuple[int, int]]:
        """Every finished run with what tells whether its file was written again."""
        files = (self.study / "runs").glob("[!.]*.json") if self.study.exists() else ()
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}

    def kill(self, process: subprocess.Popen[bytes]) -> bool:
        """Kill after some time, or at the moment when a result appears; false if it was done before."""
        at_result, before = self.rng.random() < 0.5, self.results()
        until = time.monotonic() + (60 if at_result else self.rng.uniform(0, self.longest))
        while time.monotonic() < until and process.poll() is None:
            if at_result and self.results().keys() != before.keys():
                time.sleep(self.rng.choice([0, 0, 0.01, 0.3]))
                break
            time.sleep(0.002)
        process.kill()
        if process.wait() == 0:
            return False
        self.kills += 1
        return True

    def check(self) -> None:
        """What was finished is as it was, and nobody works on without the parent."""
        now = self.results()
        assert self.kept.items() <= now.items(), "a finished run was run again or lost"
        self.kept = now
        started = self.folder / "started"
        pids = [int(line.split()[1]) for line in started.read_text().splitlines() if line]
        assert all_gone(pids), "a worker outlived its study"

    def complete(self) -> None:
        """The sweep was not killed any more: compare it with one that never was."""
        study = Study.from_json((self.study / "study.json").read_bytes())
        assert all_numbers(study) == self.reference
        assert len(study.speeds) == 1
        self.check()
        self.sweeps, self.kept = self.sweeps + 1, {}


def kill_and_resume(folder: Path, kills: int, seed: int, longest: float) -> Killing:
    """Kill ``kills`` times; a sweep that gets through in between is compared, and a new one begun."""
    (folder / "started").touch()
    reference = run_study(SPEC, folder / "reference", HereExecutor())
    killing = Killing(folder, random.Random(seed), all_numbers(reference), longest)
    while killing.kills < kills:
        if killing.kill(killing.start()):
            killing.check()
        else:
            killing.complete()
    assert killing.start().wait() == 0
    killing.complete()
    return killing


def test_a_study_survives_being_killed(tmp_path: Path) -> None:
    killing = kill_and_resume(tmp_path, kills=3, seed=7, longest=10)
    assert killing.kills == 3


def main(kills: int = 20) -> None:
    seed = time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        killing = kill_and_resume(Path(folder), kills, seed, longest=20)
    print(
        f"{killing.kills} kills over {killing.sweeps} sweeps: every sweep ended with the runs of one that "
        "was never killed, bit for bit; no finished run was lost or run again"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
