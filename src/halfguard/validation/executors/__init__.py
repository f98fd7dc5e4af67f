"""Where runs take place: an executor takes tasks and yields results as they come in.

A worker that dies takes its run with it. The run is repeated, at most ``ATTEMPTS`` times in all; then it is
lost, and the result says how its worker died. What is under way when the time is up is handed back as cut
off: a run that never ends must not look like one that was never begun.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, Protocol

from halfguard.records.study import RunResult, Speed
from halfguard.validation.ledger import Result
from halfguard.validation.runs.task import Task

ATTEMPTS = 3


class Executor(Protocol):
    """Carries out tasks, in their order as far as it can."""

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        """Yield each task with its result, soonest first; end early at ``deadline`` (monotonic).

        Runs that had begun by then are yielded too, as ``cut_off``. Closing the iterator stops what runs.
        """


def may_begin(task: Task, beside: Sequence[Task]) -> bool:
    """Whether ``task`` may run while those ``beside`` it do."""
    return not beside or not (task.alone or any(other.alone for other in beside))


def lost(task: Task, why: str) -> Result:
    """The result of a task whose workers died every time."""
    failure = f"its worker died {ATTEMPTS} times, the last time: {why}"
    return _nothing(task, failure=failure, attempt=ATTEMPTS)


def cut_off(task: Task, attempt: int, state: str) -> Result:
    """The result of a task that had begun, and was in this ``state``, when the time was up."""
    failure = f"{state} when the budget of time was used up"
    return _nothing(task, failure=failure, attempt=attempt, cause="budget")


def _nothing(task: Task, **why: Any) -> Result:
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
