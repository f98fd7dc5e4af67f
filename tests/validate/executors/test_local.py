"""Runs as processes: the same numbers as in this one, and deaths are survived or told."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from halfguard.errors import UsageError
from halfguard.records.study import RunResult
from halfguard.validate.executors import ATTEMPTS, may_begin
from halfguard.validate.executors.local import LocalExecutor
from halfguard.validate.runs.running import run
from halfguard.validate.runs.task import run_tasks, speed_tasks
from halfguard.validate.study import run_study
from tests.validate.helper import numbers, spec_of
from tests.validate.processes import all_gone


def test_processes_give_the_numbers_of_this_one() -> None:
    tasks = run_tasks(spec_of("healthy", candidates=["fp16-mixed", "fp16-mixed guarded"], seeds=1))
    found = LocalExecutor(2).run(tasks, deadline=math.inf)
    results = {task.candidate: result for task, result in found if isinstance(result, RunResult)}
    for task in tasks:
        assert numbers(results[task.candidate]) == numbers(run(task))
    # Also in a process in which nothing was emulated before, the guard changes no bit.
    assert results["fp16-mixed"].curve.loss == results["fp16-mixed guarded"].curve.loss


def test_a_dead_workers_run_is_repeated_and_a_murderous_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFGUARD_TEST_DEATHS", str(tmp_path))
    for seed, deaths in ((0, 1), (1, 1000)):
        (tmp_path / str(seed)).write_text(str(deaths))
    tasks = [task for task in run_tasks(spec_of("dying")) if task.candidate == "fp32"]
    results = LocalExecutor(2).run(tasks, deadline=math.inf)
    survived, lost = sorted((result for _, result in results), key=lambda result: result.seed)  # type: ignore[union-attr]
    assert isinstance(survived, RunResult)
    assert (survived.failure, survived.attempt) == (None, 2)
    assert isinstance(lost, RunResult)
    assert lost.failure == f"its worker died {ATTEMPTS} times, the last time: signal 9"
    assert (tmp_path / "1").read_text() == str(1000 - ATTEMPTS)


def test_a_mistake_ends_the_study_at_once(tmp_path: Path) -> None:
    spec = spec_of("no_such_job", seeds=50)
    with pytest.raises(UsageError, match="no function 'no_such_job'"):
        run_study(spec, tmp_path)


def test_an_interrupted_study_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, nap = tmp_path / "started", time.sleep
    monkeypatch.setenv("HALFGUARD_TEST_STARTED", str(started))

    def interrupt(seconds: float) -> None:
        if started.exists():
            raise KeyboardInterrupt
        nap(seconds)

    monkeypatch.setattr(time, "sleep", interrupt)
    (task, _) = run_tasks(spec_of("slow", seeds=1, steps=10_000))
    with pytest.raises(KeyboardInterrupt):
        next(LocalExecutor().run([task], deadline=math.inf))
    assert all_gone([int(started.read_text().split()[1])])


def test_nothing_is_started_after_the_deadline() -> None:
    tasks = run_tasks(spec_of("healthy"))
    assert list(LocalExecutor().run(tasks, deadline=time.monotonic())) == []


def test_what_is_timed_runs_by_itself() -> None:
    spec = spec_of("healthy", candidates=["fp16-mixed", "bf16-mixed"], seeds=1)
    (base, half, _), (timed, other) = run_tasks(spec), speed_tasks(spec)
    assert may_begin(base, [half])
    assert may_begin(timed, [])
    assert not may_begin(timed, [base])
    assert not may_begin(base, [timed])
    assert not may_begin(timed, [other])
