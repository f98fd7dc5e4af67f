"""Executors run tasks in other processes or on other machines, and yield each result when it is ready.

If a worker dies, its run is repeated, up to ``MAX_ATTEMPTS`` attempts in all. Then the run is lost, and the
result says how its worker died. A run that has started but not ended when the time budget ends is returned
as timed out: a run that hangs must not look like one that never started.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, Protocol

from halfguard.records.study import RunResult, Speed
from halfguard.validation.finished_runs import Result
from halfguard.validation.runs.task import Task

MAX_ATTEMPTS = 3


class Executor(Protocol):
    """Runs tasks, in their order as far as possible."""

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        """Yield each task with its result, in the order they end; stop at ``deadline`` (monotonic time).

        Tasks that are still running then get ``timed_out_result``. Closing the iterator stops all runs.
        """


def may_start(task: Task, running: Sequence[Task]) -> bool:
    """Return whether ``task`` may run at the same time as the ``running`` tasks."""
    return not running or not (task.exclusive or any(other.exclusive for other in running))


def lost_result(task: Task, why: str) -> Result:
    """Return the result of a task whose worker died in every attempt."""
    failure = f"its worker died {MAX_ATTEMPTS} times; the last reason was: {why}"
    return _empty_result(task, failure=failure, attempt=MAX_ATTEMPTS)


def timed_out_result(task: Task, attempt: int, state: str) -> Result:
    """Return the result of a task that had started, and was in this ``state``, when the time budget ended."""
    failure = f"{state} when the time budget ended"
    return _empty_result(task, failure=failure, attempt=attempt, cause="budget")


def _empty_result(task: Task, **why: Any) -> Result:
    if task.against is not None:
        return Speed(candidate=task.candidate, ratio=math.nan, low=math.nan, high=math.nan, pairs=0)
    return RunResult(
        candidate=task.candidate,
        precision=task.setting.precision,
        seed=task.seed,
        metrics={},
        steps=0,
        duration=0.0,
        **why,
    )
