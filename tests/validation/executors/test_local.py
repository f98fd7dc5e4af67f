"""Runs as processes: the same numbers as in this one, and deaths are survived or told."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest

from halfguard.errors import UsageError
from halfguard.records.study import RunResult
from halfguard.validation.executors import MAX_ATTEMPTS, may_start
from halfguard.validation.executors.local import LocalExecutor
from halfguard.validation.runs.running import run
from halfguard.validation.runs.task import run_tasks, speed_tasks
from halfguard.validation.study import run_study
from tests.validation.helper import all_gone, numbers, spec_of


@pytest.mark.slow
def test_processes_give_the_numbers_of_this_one() -> None:
    tasks = run_tasks(spec_of("healthy", candidates=["fp16-mixed", "fp16-mixed guarded"], seeds=1))
    found = LocalExecutor(2).run(tasks, deadline=math.inf)
    results = {task.candidate: result for task, result in found if isinstance(result, RunResult)}
    for task in tasks:
        assert numbers(results[task.candidate]) == numbers(run(task))
    # Also in a process in which nothing was emulated before, the guard changes no bit.
    assert results["fp16-mixed"].curve.loss == results["fp16-mixed guarded"].curve.loss


@pytest.mark.slow
def test_a_dead_workers_run_is_repeated_and_a_murderous_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFGUARD_TEST_DEATHS", str(tmp_path))
    for seed, deaths in ((0, 1), (1, 1000)):
        (tmp_path / str(seed)).write_text(str(deaths))
    tasks = [task for task in run_tasks(spec_of("dying")) if task.candidate == "fp32"]
    results = LocalExecutor(2).run(tasks, deadline=math.inf)
    survived, lost = sorted((result for _, result in results), key=lambda result: result.seed)
    assert isinstance(survived, RunResult)
    assert (survived.failure, survived.attempt) == (None, 2)
    assert isinstance(lost, RunResult)
    assert lost.failure == f"its worker died {MAX_ATTEMPTS} times; the last reason was: signal 9"
    assert (tmp_path / "1").read_text() == str(1000 - MAX_ATTEMPTS)


@pytest.mark.slow
def test_a_mistake_ends_the_study_at_once(tmp_path: Path) -> None:
    spec = spec_of("no_such_job", seeds=50)
    with pytest.raises(UsageError, match="no function 'no_such_job'"):
        run_study(spec, tmp_path)


@pytest.mark.slow
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


@pytest.mark.alone
def test_a_running_task_is_returned_at_the_deadline_and_a_waiting_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HALFGUARD_TEST_SLEEP", "0.05")
    first, second, *_ = run_tasks(spec_of("slow", steps=10_000))
    ((task, result),) = LocalExecutor(1).run([first, second], deadline=time.monotonic() + 1)
    assert task == first
    assert isinstance(result, RunResult)
    assert (result.cause, result.lost, result.attempt) == ("budget", True, 1)
    assert result.failure is not None
    assert "running for 1 s when the time budget ended" in result.failure


@pytest.mark.slow
def test_a_run_that_dies_before_the_deadline_and_waits_for_its_turn_had_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFGUARD_TEST_DEATHS", str(tmp_path))
    counter = tmp_path / "0"
    counter.write_text("1000")
    passed = time.monotonic
    monkeypatch.setattr(
        time, "monotonic", lambda: passed() if counter.read_text() == "1000" else math.inf
    )
    (task, *_) = run_tasks(spec_of("dying"))
    found = LocalExecutor().run([task], deadline=passed() + 60)
    assert [result.cause for _, result in found if isinstance(result, RunResult)] == ["budget"]


@pytest.mark.slow
def test_a_commands_script_ends_with_its_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, nap = tmp_path / "started", time.sleep
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(started)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )

    def interrupt(seconds: float) -> None:
        if started.exists() and started.read_text():
            raise KeyboardInterrupt
        nap(seconds)

    monkeypatch.setattr(time, "sleep", interrupt)
    command = f"{sys.executable} {script} {{precision}} {{seed}} {{out}}"
    spec = spec_of("healthy", entry=None, steps=None, command=command, seeds=1)
    with pytest.raises(KeyboardInterrupt):
        next(LocalExecutor().run(run_tasks(spec), deadline=math.inf))
    assert all_gone([int(started.read_text())])


def test_what_is_timed_runs_by_itself() -> None:
    spec = spec_of("healthy", candidates=["fp16-mixed", "bf16-mixed"], seeds=1)
    (base, half, _), (timed, other) = run_tasks(spec), speed_tasks(spec)
    assert may_start(base, [half])
    assert may_start(timed, [])
    assert not may_start(timed, [base])
    assert not may_start(base, [timed])
    assert not may_start(timed, [other])
