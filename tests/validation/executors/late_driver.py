"""``python -m tests.validation.executors.late_driver FOLDER``: Ray's news, read at the deadline only.

Prints what came of it as one JSON object. It is a process of its own because Ray leaves traces in the one
that starts it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import ray

from halfguard.records.study import RunResult
from halfguard.validation.executors import ray as executor
from halfguard.validation.runs.task import run_tasks
from halfguard.validation.sections import ExecutorSpec
from tests.validation.helper import spec_of

RUNS = 2


def _told(file: Path, free: int) -> bool:
    """Whether every run has written there, and so many processors have nothing to do."""
    told = file.exists() and len(file.read_text().splitlines()) == RUNS
    return told and ray.available_resources().get("CPU", 0) == free


def causes(steps: int, file: Path, free: int) -> list[str | None]:
    """How two runs of so many steps ended, if both had told so in ``file`` before anybody asked."""

    @functools.cache
    def late() -> float:
        give_up = time.monotonic() + 100
        while not _told(file, free) and time.monotonic() < give_up:
            time.sleep(0.1)
        time.sleep(6)  # until Ray knows it too, on a busy machine
        return math.inf

    clock: Any = types.SimpleNamespace(monotonic=late)
    executor.time = clock  # type: ignore[attr-defined]
    tasks = run_tasks(spec_of("slow", steps=steps))[:RUNS]
    found = list(executor.RayExecutor(ExecutorSpec(kind="ray")).run(tasks, deadline=1.0))
    return [one.cause if one.failure else "ended" for _, one in found if isinstance(one, RunResult)]


def main(folder: str) -> None:
    started, finished = Path(folder) / "started", Path(folder) / "finished"
    # before Ray starts what starts the workers
    os.environ["HALFGUARD_TEST_STARTED"] = str(started)
    os.environ["HALFGUARD_TEST_FINISHED"] = str(finished)
    os.environ["HALFGUARD_TEST_SLEEP"] = "0.02"
    ray.init(num_cpus=RUNS, num_gpus=0, include_dashboard=False, log_to_driver=False)
    answer = {"short": causes(2, finished, free=RUNS)}
    started.unlink()
    answer["endless"] = causes(100_000, started, free=0)
    ray.shutdown()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
