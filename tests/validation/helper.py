"""Specifications over the small jobs, what of a run is the same when it is repeated, and its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from halfguard.records.study import RunResult, Study
from halfguard.validation.finished_runs import Result
from halfguard.validation.runs.running import run
from halfguard.validation.runs.stepping import measure_speed
from halfguard.validation.runs.task import Task
from halfguard.validation.spec import Spec

JOBS = Path(__file__).parent / "jobs.py"
# What depends on the machine's mood and not on the job.
MOODS = {"duration", "environment", "attempt"}


def spec_of(job: str, **keys: Any) -> Spec:
    values = {
        "name": job,
        "entry": f"{JOBS}:{job}",
        "candidates": ["fp16-mixed"],
        "seeds": 2,
        "steps": 6,
        "metric": {"name": "accuracy", "higher_is_better": True},
    }
    return Spec.load(values | keys)


def numbers(run: RunResult) -> str:
    """Everything that the job determines, bit for bit."""
    return run.model_dump_json(exclude=MOODS)


def all_numbers(study: Study) -> list[str]:
    return [numbers(run) for run in study.runs]


class HereExecutor:
    """Carries tasks out in this process, in an order of one's choice, and counts them."""

    def __init__(self, order: Callable[[list[Task]], list[Task]] = list) -> None:
        self.order = order
        self.done: list[str] = []

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        for task in self.order(list(tasks)):
            if time.monotonic() >= deadline:
                return
            self.done.append(task.key)
            yield task, run(task) if task.against is None else measure_speed(task)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def all_gone(pids: list[int]) -> bool:
    """Whether the processes have ended; what is killed may take a moment to."""
    give_up = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < give_up:
        os.sched_yield()
    return not any(map(alive, pids))
