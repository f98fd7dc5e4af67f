"""Where runs take place: an executor takes tasks and yields results as they come in.

A worker that dies takes its run with it. The run is repeated, at most ``ATTEMPTS`` times in all; then it is
lost, and the result says how its worker died.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Protocol

from halfguard.records.study import RunResult, Speed
from halfguard.validate.ledger import Result
from halfguard.validate.runs.task import Task

ATTEMPTS = 3


class Executor(Protocol):
    """Carries out tasks, in their order as far as it can."""

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        """Yield each task with its result, soonest first; end early at ``deadline`` (monotonic).

        Closing the iterator stops what runs.
        """


def may_begin(task: Task, beside: Sequence[Task]) -> bool:
    """Whether ``task`` may run while those ``beside`` it do."""
    return not beside or not (task.alone or any(other.alone for other in beside))


def lost(task: Task, why: str) -> Result:
    """The result of a task whose workers died every time."""
    if task.against is not None:
        return Speed(candidate=task.candidate, ratio=math.nan, low=math.nan, high=math.nan, pairs=0)
    return RunResult(
        candidate=task.candidate,
        precision=task.setting.precision,
        seed=task.seed,
        metrics={},
        steps=0,
        duration=0.0,
        failure=f"its worker died {ATTEMPTS} times, the last time: {why}",
        attempt=ATTEMPTS,
    )
