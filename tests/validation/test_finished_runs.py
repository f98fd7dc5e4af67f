"""The folder of a study: what is there is not run again, and the study does not depend on the way to it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfguard.errors import HalfguardError, UsageError
from halfguard.records.study import Curve, RunResult, Speed, Study
from halfguard.validation.finished_runs import FinishedRuns
from halfguard.validation.runs.task import Task, run_tasks, speed_tasks
from halfguard.validation.study import Progress, run_study
from tests.validation.helper import HereExecutor, all_numbers, spec_of

FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=5), FLOATS, max_size=3), st.lists(FLOATS, max_size=4))
def test_every_number_survives_json(metrics: dict[str, float], loss: list[float]) -> None:
    values = tuple(loss)
    curve = Curve(steps=tuple(range(len(loss))), loss=values, grad_norm=values, scale=values)
    run = RunResult(
        candidate="<a>", precision="fp32", seed=0, metrics=metrics, steps=1, curve=curve, duration=1
    )
    speed = Speed(candidate="b", ratio=float("nan"), low=0.0, high=float("inf"), pairs=0)
    study = Study(name="s", spec={}, runs=(run,), speeds=(speed,))
    again = Study.from_json(study.to_json())
    assert repr(again) == repr(study)
    assert again.digest() == study.digest()


def test_a_changed_number_is_another_digest() -> None:
    run = RunResult(
        candidate="a", precision="fp32", seed=0, metrics={"m": 1.0}, steps=1, duration=1
    )
    other = run.model_copy(update={"metrics": {"m": 1.0000000000000002}})
    digests = {Study(name="s", spec={}, runs=(one,)).digest() for one in (run, other)}
    assert len(digests) == 2


def test_what_is_in_the_folder_is_not_run_again(tmp_path: Path) -> None:
    spec = spec_of("healthy", candidates=["fp16-mixed", "bf16-mixed"])
    first, second = HereExecutor(), HereExecutor()
    seen: list[Progress] = []
    study = run_study(spec, tmp_path, first, seen.append)
    assert len(first.done) == len(set(first.done)) == 8
    assert [progress.done for progress in seen] == list(range(9))
    assert seen[-1].total == 8
    assert run_study(spec, tmp_path, second) == study
    assert second.done == []
    assert Study.from_json((tmp_path / "study.json").read_bytes()) == study
    (tmp_path / "runs" / f"{first.done[1]}.json").write_text("{damaged")
    run_study(spec, tmp_path, second)
    assert second.done == [first.done[1]]


def test_more_seeds_and_candidates_add_only_what_is_missing(tmp_path: Path) -> None:
    run_study(spec_of("healthy"), tmp_path, HereExecutor())
    more, another = HereExecutor(), HereExecutor()
    run_study(spec_of("healthy", seeds=3), tmp_path, more)
    assert len(more.done) == 2
    wider = spec_of("healthy", seeds=3, candidates=["fp16-mixed", "bf16-mixed"])
    run_study(wider, tmp_path, another)
    assert len(another.done) == 4  # three runs and their speed


def _shuffled(rng: random.Random, tasks: list[Task]) -> list[Task]:
    return rng.sample(tasks, len(tasks))


def test_the_order_of_arrival_decides_nothing(tmp_path: Path) -> None:
    spec = spec_of("healthy", candidates=["bf16-mixed", "fp16-mixed"], seeds=[5, 2])
    studies = []
    for number in range(2):
        rng = random.Random(number)
        shuffled = HereExecutor(partial(_shuffled, rng))
        studies.append(run_study(spec, tmp_path / str(number), shuffled))
    names = [(run.candidate, run.seed) for run in studies[0].runs]
    assert names == [
        (name, seed) for name in ("fp32", "bf16-mixed", "fp16-mixed") for seed in (5, 2)
    ]
    assert all_numbers(studies[0]) == all_numbers(studies[1])


def test_a_budget_of_time_ends_a_study_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFGUARD_TEST_SLEEP", "0.05")
    spec = spec_of("slow", steps=5, seeds=50, budget={"minutes": 0.02})
    study = run_study(spec, tmp_path, HereExecutor())
    assert 0 < len(study.runs) < 50
    assert study.speeds == ()


def test_runs_that_are_no_pair_make_no_study(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a pair"):
        run_study(spec_of("unpaired"), tmp_path, HereExecutor())
    assert not (tmp_path / "study.json").exists()


def test_speed_is_measured_against_the_baseline(tmp_path: Path) -> None:
    twin = {"name": "twin", "precision": "fp32"}
    spec = spec_of("healthy", candidates=[twin], seeds=1)
    study = run_study(spec, tmp_path, HereExecutor())
    (speed,) = study.speeds
    assert (speed.candidate, speed.pairs) == ("twin", 30)
    assert speed.low <= speed.ratio <= speed.high


def test_keys_are_file_names_whatever_the_candidate_is_called(tmp_path: Path) -> None:
    names = ["../../up", "a/b", "<script>", "Ä ö", "x" * 500]
    arms = [{"name": name, "precision": "fp16-mixed"} for name in names]
    spec = spec_of("healthy", candidates=arms, seeds=1)
    tasks: list[Task] = [*run_tasks(spec), *speed_tasks(spec)]
    finished = FinishedRuns(tmp_path)
    for task in tasks:
        speed = Speed(candidate=task.candidate, ratio=1, low=1, high=1, pairs=1)
        run = RunResult(
            candidate=task.candidate, precision="", seed=0, metrics={}, steps=0, duration=0
        )
        finished.add(task, run if task.against is None else speed)
    assert len(list((tmp_path / "runs").iterdir())) == len(tasks)
    assert all(finished.find(task) is not None for task in tasks)


def test_a_result_that_cannot_be_written_is_told_with_the_way_on(tmp_path: Path) -> None:
    finished = FinishedRuns(tmp_path)
    (task, _) = run_tasks(spec_of("healthy", seeds=1))
    finished.results.rmdir()
    finished.results.touch()
    result = RunResult(candidate="a", precision="", seed=0, metrics={}, steps=0, duration=0)
    with pytest.raises(HalfguardError, match=r"Cannot write (.|\n)*start the same command"):
        finished.add(task, result)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file"):
        FinishedRuns(tmp_path / "file" / "study")


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    spec = spec_of("healthy", seeds=1)
    with (
        FinishedRuns(tmp_path).lock(),
        pytest.raises(UsageError, match=rf"another process, {os.getpid()} on (.|\n)*: -o FOLDER"),
    ):
        run_study(spec, tmp_path, HereExecutor())
    assert not (tmp_path / "study.json").exists()
    assert run_study(spec, tmp_path, HereExecutor()).runs


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from halfguard.validation.finished_runs import FinishedRuns\n"
        "with FinishedRuns(sys.argv[1]).lock(): os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    with FinishedRuns(tmp_path).lock():
        assert (tmp_path / ".lock").read_text().startswith(f"{os.getpid()} on ")
