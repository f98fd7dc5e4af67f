"""A whole study: which runs are missing, have them run, check that they are pairs, and put them together.

The order of what finishes decides nothing. A study is assembled from the ledger in the order of its
specification, so one that was interrupted twenty times, or spread over ten machines, is the same study.
"""

from __future__ import annotations

import contextlib
import itertools
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
from halfguard.validation.executors.local import LocalExecutor
from halfguard.validation.ledger import Ledger, Result
from halfguard.validation.runs.metrics import CURE
from halfguard.validation.runs.pairing import refuse_strangers
from halfguard.validation.runs.speed import speed_of_runs
from halfguard.validation.runs.task import Task, run_tasks, speed_tasks
from halfguard.validation.sections import ExecutorSpec
from halfguard.validation.spec import Spec

_DOOMED = 3  # seeds with which the baseline fails alike: more of them would tell nothing
_UNMEASURED = 2  # seeds with which the baseline lacks the metric: one may have diverged


@dataclass(frozen=True)
class Progress:
    """How far a study is; ``last`` has just come in, or is None for what was there already."""

    done: int
    total: int
    last: Result | None
    seconds_left: float | None


OnProgress = Callable[[Progress], None]
# Asked whenever a seed is complete whether the runs of the seeds so far decide; true ends the study.
Enough = Callable[[Study], bool]


def run_study(
    spec: Spec | Mapping[str, Any] | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
    enough: Enough | None = None,
) -> Study:
    """Run what ``folder`` does not have yet of the study that ``spec`` describes.

    Every finished run is kept in ``folder``; starting again there goes on where it was stopped.
    """
    spec = Spec.load(spec)
    ledger = Ledger(folder)
    with ledger.mine():
        sweep = _Sweep(spec, ledger, on_progress or _silent, enough)
        sweep.go(executor or make_executor(spec.executor))
        study = sweep.study()
        ledger.save(study)
    return study


def missing(spec: Spec, folder: str | os.PathLike[str]) -> list[Task]:
    """What ``run_study`` would have to run."""
    ledger = Ledger(folder)
    return [task for task in (*run_tasks(spec), *speed_tasks(spec)) if ledger.find(task) is None]


def make_executor(spec: ExecutorSpec) -> Executor:
    """The executor that a specification asks for."""
    if spec.kind == "local":
        return LocalExecutor(spec.workers)
    from halfguard.validation.executors.ray import RayExecutor  # noqa: PLC0415 - an extra

    return RayExecutor(spec)


class _Sweep:
    """The results so far, those found in the ledger included."""

    def __init__(
        self, spec: Spec, ledger: Ledger, on_progress: OnProgress, enough: Enough | None
    ) -> None:
        self.spec, self.ledger = spec, ledger
        self._on_progress, self._enough = on_progress, enough
        minutes = spec.budget.minutes
        self._deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self._tasks = {task.key: task for task in (*run_tasks(spec), *speed_tasks(spec))}
        found = ((key, ledger.find(task)) for key, task in self._tasks.items())
        self._results: dict[str, Result] = {key: one for key, one in found if one is not None}
        if self._unfounded():
            self._forget(lambda run: run.failure is not None)
        self._found, self._started = len(self._results), time.monotonic()
        self._looks = 0  # that were made, and were not enough
        self._deciding: tuple[int, ...] | None = None
        refuse_strangers(self._runs(), spec.baseline.name)
        self._look()
        self._tell(None)

    def go(self, executor: Executor) -> None:
        """Have run what has no result yet; as soon as the seeds decide, only speed is still measured."""
        decided = self._deciding is not None
        missing = [task for key, task in self._tasks.items() if key not in self._results]
        todo = [task for task in missing if task.alone or not decided]
        if not todo or self._hopeless():
            return
        with contextlib.closing(executor.run(todo, deadline=self._deadline)) as results:
            for task, result in results:
                self._keep(task, result)
                if self._hopeless() or (not decided and self._deciding is not None):
                    break
            else:
                return
        self.go(executor)

    def study(self) -> Study:
        """What there is, in the specification's order; of the deciding seeds, if there are such."""
        return self._study(self._deciding or self.spec.seeds)

    def _look(self) -> None:
        """Ask, of the seeds that are complete by now, whether the first ones are enough; each look once.

        Seeds are taken in the specification's order, whatever came first.
        """
        if self._enough is None or self._deciding is not None:
            return
        missing = {
            task.seed
            for key, task in self._tasks.items()
            if not task.alone and key not in self._results
        }
        seeds = tuple(itertools.takewhile(lambda seed: seed not in missing, self.spec.seeds))
        while self._deciding is None and self._looks < len(seeds):
            look = seeds[: self._looks + 1]
            if self._enough(self._study(look)):
                self._deciding = look
            self._looks += 1

    def _hopeless(self) -> bool:
        """Whether the baseline fails with every seed in the same way, so that nothing can be compared."""
        own = self._baseline()
        told = {re.sub(r"[\d.]+", "", run.failure) for run in own if run.failure is not None}
        return len(own) >= _DOOMED and len(told) == 1 and all(run.failure for run in own)

    def _unfounded(self) -> bool:
        """Whether an earlier start ended with a baseline that failed throughout.

        Its cause may be gone by now, a share that was not mounted perhaps, and the candidates have failed
        for it too: nothing that failed then is a finding.
        """
        own = self._baseline()
        throughout = len(own) == self._planned() and all(run.failure for run in own)
        return throughout or self._hopeless()

    def _runs(self) -> list[RunResult]:
        return [one for one in self._results.values() if isinstance(one, RunResult)]

    def _baseline(self) -> list[RunResult]:
        """Its runs, without those that were lost or cut off: they show nothing."""
        name = self.spec.baseline.name
        return [run for run in self._runs() if run.candidate == name and not run.lost]

    def _planned(self) -> int:
        """How many runs of the baseline the study has."""
        return sum(task.candidate == self.spec.baseline.name for task in self._tasks.values())

    def _forget(self, which: Callable[[RunResult], bool]) -> None:
        """Have these runs made again.

        The baseline's go last: a start that is killed in between leaves a baseline that failed throughout,
        and the next one goes on from there.
        """
        runs = [(key, one) for key, one in self._results.items() if isinstance(one, RunResult)]
        runs.sort(key=lambda run: run[1].candidate == self.spec.baseline.name)
        for key, run in runs:
            if which(run):
                del self._results[key]
                self.ledger.forget(self._tasks[key])

    def _study(self, seeds: tuple[int, ...]) -> Study:
        names, wanted = [arm.name for arm in self.spec.arms], set(seeds)
        results = [self._results[key] for key in self._tasks if key in self._results]
        runs = [one for one in results if isinstance(one, RunResult) and one.seed in wanted]
        runs.sort(key=lambda run: names.index(run.candidate))  # stable: seeds stay in their order
        speeds = [one for one in results if isinstance(one, Speed)]
        if self.spec.command is not None:
            pairs = (speed_of_runs(name, names[0], tuple(runs)) for name in names[1:])
            speeds = [speed for speed in pairs if speed is not None]
        return Study(
            name=self.spec.name, spec=self.spec.dump(), runs=tuple(runs), speeds=tuple(speeds)
        )

    def _keep(self, task: Task, result: Result) -> None:
        self._results[task.key] = result
        if not result.lost:  # a machine's failure is not kept: it may be cured next time
            self.ledger.record(task, result)
        pair = [run for run in self._runs() if run.seed == task.seed]
        refuse_strangers(pair, self.spec.baseline.name)
        self._refuse_unmeasured()
        self._look()
        self._tell(result)

    def _refuse_unmeasured(self) -> None:
        """Raise if the baseline has no metric: that is the specification's mistake, and is mended there.

        A candidate without one may have diverged, which is a result, whether it ends first or last.
        """
        own = self._baseline()
        without = [run for run in own if run.cause == "metric"]
        enough = min(_UNMEASURED, self._planned())
        if len(without) < enough or any(self.spec.metric.name in run.metrics for run in own):
            return
        self._forget(lambda run: run.cause == "metric")
        first = min(without, key=lambda run: self.spec.seeds.index(run.seed))
        raise UsageError(f"{first.candidate} with seed {first.seed}: {first.failure}", cure=CURE)

    def _tell(self, last: Result | None) -> None:
        done, total = len(self._results), len(self._tasks)
        here = done - self._found
        pace = (time.monotonic() - self._started) / here if here else None
        left = None if pace is None else pace * (total - done)
        self._on_progress(Progress(done, total, last, left))


def _silent(_: Progress) -> None:
    pass
