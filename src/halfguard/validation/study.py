"""Run a study: find the missing runs, execute them, check that they are pairs, and assemble the study.

The order in which runs finish has no effect. A study is assembled from its finished runs in the order of the
specification, so a study that was interrupted twenty times or run on ten machines is still the same study.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from halfguard.errors import UsageError
from halfguard.records.study import RunResult, Speed, Study
from halfguard.validation.executors import Executor
from halfguard.validation.finished_runs import FinishedRuns, Result
from halfguard.validation.runs.metrics import CURE
from halfguard.validation.runs.pairing import raise_if_unpaired
from halfguard.validation.runs.stepping import speed_of_runs
from halfguard.validation.runs.task import Task, run_tasks, speed_tasks
from halfguard.validation.spec import ExecutorSpec, Spec

_SAME_FAILURES = 3  # the study stops when the baseline has failed alike with this many seeds
_WITHOUT_METRIC = 2  # the same for baseline runs without the metric: one alone may have diverged


@dataclass(frozen=True)
class Progress:
    """The state of a running study; ``last`` is the newest result, or None for those found at the start."""

    done: int
    total: int
    last: Result | None
    seconds_left: float | None


OnProgress = Callable[[Progress], None]


def run_study(
    spec: Spec | Mapping[str, Any] | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> Study:
    """Run the tasks of ``spec`` that have no result in ``folder`` yet, and return the study.

    Every finished run is kept in ``folder``; a second start there resumes the study.
    """
    spec = Spec.load(spec)
    finished = FinishedRuns(folder)
    with finished.lock():
        runner = _StudyRunner(spec, finished, on_progress or (lambda _: None))
        runner.run(executor or make_executor(spec.executor))
        study = runner.study()
        finished.save(study)
    return study


def missing_tasks(spec: Spec, folder: str | os.PathLike[str]) -> list[Task]:
    """Return the tasks that ``run_study`` would run."""
    finished = FinishedRuns(folder)
    return [task for task in (*run_tasks(spec), *speed_tasks(spec)) if finished.find(task) is None]


def make_executor(spec: ExecutorSpec) -> Executor:
    """Create the executor of a specification: each kind is a module of ``executors``."""
    module = importlib.import_module(f"halfguard.validation.executors.{spec.kind}")
    executor: Executor = module.make_executor(spec)
    return executor


class _StudyRunner:
    """The results so far, including those found in the folder."""

    def __init__(self, spec: Spec, finished: FinishedRuns, on_progress: OnProgress) -> None:
        self.spec, self.finished, self._on_progress = spec, finished, on_progress
        minutes = spec.budget.minutes
        self._deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self._tasks = {task.key: task for task in (*run_tasks(spec), *speed_tasks(spec))}
        found = ((key, finished.find(task)) for key, task in self._tasks.items())
        self._results: dict[str, Result] = {key: one for key, one in found if one is not None}
        if self._baseline_failed_before():
            self._discard(lambda run: run.failure is not None)
        self._found, self._started = len(self._results), time.monotonic()
        raise_if_unpaired(self._runs(), spec.baseline.name)
        self._report_progress(None)

    def run(self, executor: Executor) -> None:
        """Execute the tasks without a result, unless the baseline always fails."""
        todo = [task for key, task in self._tasks.items() if key not in self._results]
        if not todo or self._baseline_always_fails():
            return
        with contextlib.closing(executor.run(todo, deadline=self._deadline)) as results:
            for task, result in results:
                self._add(task, result)
                if self._baseline_always_fails():
                    return

    def study(self) -> Study:
        """Assemble the results in the specification's order."""
        names = [arm.name for arm in self.spec.arms]
        results = [self._results[key] for key in self._tasks if key in self._results]
        runs = [one for one in results if isinstance(one, RunResult)]
        runs.sort(key=lambda run: names.index(run.candidate))  # stable: seeds stay in their order
        speeds = [one for one in results if isinstance(one, Speed)]
        if self.spec.command is not None:
            pairs = (speed_of_runs(name, names[0], tuple(runs)) for name in names[1:])
            speeds = [speed for speed in pairs if speed is not None]
        return Study(
            name=self.spec.name, spec=self.spec.dump(), runs=tuple(runs), speeds=tuple(speeds)
        )

    def _baseline_always_fails(self) -> bool:
        """Return whether every seed of the baseline fails in the same way: nothing can be compared."""
        runs = self._baseline()
        failures = {re.sub(r"[\d.]+", "", run.failure) for run in runs if run.failure is not None}
        same = len(failures) == 1 and all(run.failure for run in runs)
        return len(runs) >= _SAME_FAILURES and same

    def _baseline_failed_before(self) -> bool:
        """Return whether an earlier start ended with a baseline that failed with every seed.

        The cause may be gone now, for example a share that was not mounted. It made candidates fail as well,
        so no failure of that start is evidence.
        """
        runs = self._baseline()
        all_failed = len(runs) == self._planned_baseline() and all(run.failure for run in runs)
        return all_failed or self._baseline_always_fails()

    def _runs(self) -> list[RunResult]:
        return [one for one in self._results.values() if isinstance(one, RunResult)]

    def _baseline(self) -> list[RunResult]:
        """Return the baseline's runs without lost and timed-out ones, which show nothing."""
        name = self.spec.baseline.name
        return [run for run in self._runs() if run.candidate == name and not run.lost]

    def _planned_baseline(self) -> int:
        return sum(task.candidate == self.spec.baseline.name for task in self._tasks.values())

    def _discard(self, which: Callable[[RunResult], bool]) -> None:
        """Remove the results of these runs, so that they are run again.

        The baseline's are removed last. If this process is killed in between, the next start still finds a
        baseline that failed with every seed and removes the rest.
        """
        runs = [(key, one) for key, one in self._results.items() if isinstance(one, RunResult)]
        runs.sort(key=lambda run: run[1].candidate == self.spec.baseline.name)
        for key, run in runs:
            if which(run):
                del self._results[key]
                self.finished.remove(self._tasks[key])

    def _add(self, task: Task, result: Result) -> None:
        self._results[task.key] = result
        if not result.lost:  # a lost run is not saved: the next start tries it again
            self.finished.add(task, result)
        pair = [run for run in self._runs() if run.seed == task.seed]
        raise_if_unpaired(pair, self.spec.baseline.name)
        self._raise_if_metric_missing()
        self._report_progress(result)

    def _raise_if_metric_missing(self) -> None:
        """Raise if the baseline does not report the metric: then the specification is wrong.

        A candidate without the metric may have diverged. That is a result, whether it ends first or last.
        """
        runs = self._baseline()
        without = [run for run in runs if run.cause == "metric"]
        limit = min(_WITHOUT_METRIC, self._planned_baseline())
        if len(without) < limit or any(self.spec.metric.name in run.metrics for run in runs):
            return
        self._discard(lambda run: run.cause == "metric")
        first = min(without, key=lambda run: self.spec.seeds.index(run.seed))
        raise UsageError(f"{first.candidate} with seed {first.seed}: {first.failure}", cure=CURE)

    def _report_progress(self, last: Result | None) -> None:
        done, total = len(self._results), len(self._tasks)
        new = done - self._found
        seconds_each = (time.monotonic() - self._started) / new if new else None
        left = None if seconds_each is None else seconds_each * (total - done)
        self._on_progress(Progress(done, total, last, left))
