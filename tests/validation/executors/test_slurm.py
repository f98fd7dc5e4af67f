"""A real Slurm cluster: one controller and some nodes, one of them killed in the middle of the study."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfguard.errors import ConfigError, UsageError
from halfguard.records.study import Study
from halfguard.validation.executors.local import LocalExecutor
from halfguard.validation.executors.slurm_jobs import Job, RunFiles
from halfguard.validation.executors.worker import TaskReply, run_request
from halfguard.validation.finished_runs import parse_result
from halfguard.validation.runs.running import run
from halfguard.validation.runs.task import run_tasks
from halfguard.validation.spec import ExecutorSpec
from halfguard.validation.study import make_executor, run_study
from tests.validation.helper import all_numbers, numbers, spec_of
from tests.validation.slurm_cluster import DAEMONS, has_slurm
from tests.validation.slurm_studies import study_spec

MISSING = f"needs {', '.join(DAEMONS)}: apt-get install --no-install-recommends slurm-wlm munge"


def on_slurm(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """Mark a test that starts a cluster, and processes with torch on it: minutes on a busy machine."""
    marks = [pytest.mark.skipif(not has_slurm(), reason=MISSING), pytest.mark.timeout(1200)]
    for mark in (*marks, pytest.mark.slow, pytest.mark.alone):
        test = mark(test)
    return test


def on_a_cluster(scenario: str, folder: Path, *options: str) -> dict[str, Any]:
    studies = [sys.executable, "-m", "tests.validation.slurm_studies"]
    command = [*studies, scenario, str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=540)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def study_in(folder: Path) -> Study:
    return Study.from_json((folder / "study/study.json").read_bytes())


def kill_a_node(folder: Path, seeds: int) -> None:
    """Run a study on three nodes, kill one of them, and expect the numbers of the local executor."""
    answer = on_a_cluster("killed_node", folder, str(seeds))
    study = study_in(folder)
    assert answer["killed"] in {"n1", "n2", "n3"}
    assert len(study.runs) == 2 * seeds
    assert all(one.failure is None for one in study.runs)
    assert [one.attempt for one in study.runs].count(2) == 1  # the node died with one run on it
    assert answer["finished"] == 2 * seeds  # and nothing that had finished was run again
    assert len(study.speeds) == 1

    local = run_study(study_spec(seeds, "local"), folder / "local", LocalExecutor(2))
    assert all_numbers(study) == all_numbers(local)


@on_slurm
def test_a_killed_node_costs_a_run_and_nothing_else(tmp_path: Path) -> None:
    kill_a_node(tmp_path, seeds=3)


@on_slurm
def test_jobs_go_on_without_the_study_and_are_found_again(tmp_path: Path) -> None:
    answer = on_a_cluster("killed_study", tmp_path)
    study = study_in(tmp_path)
    assert answer["before"] < 6
    # One start for each run, and two for the speed: what ran or had ended meanwhile was not submitted again.
    assert answer["started"] == 6 + 2
    assert "slurm" not in answer["left"]
    local = run_study(study_spec(3, "local"), tmp_path / "local", LocalExecutor(2))
    assert all_numbers(study) == all_numbers(local)


@on_slurm
def test_deaths_deadlines_and_refusals(tmp_path: Path) -> None:
    answer = on_a_cluster("small_cluster", tmp_path)
    survived, lost = answer["dying"]
    assert survived == [0, 2, None, None]
    assert lost == [1, 3, None, "its worker died 3 times, the last time: FAILED with signal 9"]
    ((seed, attempt, cause, failure),) = answer["deadline"]  # not the one that was still queued
    assert (seed, attempt, cause) == (0, 1, "budget")
    assert failure.startswith("its Slurm job was RUNNING after ")
    assert answer["refused"].startswith(
        "usage: executor: Slurm did not accept the run run-fp32-s0-"
    )
    assert "Invalid partition name" in answer["refused"]
    assert answer["mistake"].startswith("usage: ")
    assert "no function 'no_such_job'" in answer["mistake"]
    assert not answer["left"]
    assert answer["silent"].startswith("other: Slurm does not answer. squeue failed: ")


def test_a_machine_without_slurm_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        make_executor(ExecutorSpec(kind="slurm"), tmp_path)
    assert "this machine has no sbatch and no squeue" in caught.value.message
    assert "login node" in caught.value.cure
    assert "--executor local" in caught.value.cure


@pytest.mark.slow
def test_a_request_with_a_reply_is_not_run_again(tmp_path: Path) -> None:
    (task, *_) = run_tasks(spec_of("healthy"))
    files = RunFiles(tmp_path / "slurm")
    request = files.write_request(task.key, task, attempt=2)
    assert files.requested_attempt(task.key) == 2
    assert files.replied() == set()
    run_request(request)
    assert files.replied() == {task.key}
    reply = files.read_reply(task.key)
    assert isinstance(reply, TaskReply)
    result = parse_result(task, reply.result_or_raise())
    assert not hasattr(result, "ratio")
    assert numbers(result) == numbers(run(task))  # type: ignore[arg-type]

    path = tmp_path / "slurm" / f"{task.key}.reply.json"
    before = path.stat().st_ino
    run_request(request)
    assert path.stat().st_ino == before


def test_a_damaged_reply_is_deleted(tmp_path: Path) -> None:
    (task, *_) = run_tasks(spec_of("healthy"))
    files = RunFiles(tmp_path / "slurm")
    path = tmp_path / "slurm" / f"{task.key}.reply.json"
    path.write_text('{"result": ')
    assert files.read_reply(task.key) is None
    assert not path.exists()
    files.close()
    assert not (tmp_path / "slurm").exists()


@pytest.mark.parametrize(
    ("state", "ended", "alive"),
    [
        ("PENDING", False, True),
        ("RUNNING", False, True),
        ("COMPLETING", False, False),
        ("NODE_FAIL", True, False),
        ("CANCELLED", True, False),
    ],
)
def test_states(state: str, ended: bool, alive: bool) -> None:
    job = Job("1", state, "0:00", "name")
    assert (job.ended, job.alive) == (ended, alive)


@pytest.mark.parametrize("option", ["gpu", "-p gpu", "--array=0-9", "--clusters=other"])
def test_options_that_cannot_work_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="--name=value"):
        spec_of("healthy", executor={"kind": "slurm", "options": [option]})


def test_half_a_processor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = make_executor(ExecutorSpec(kind="slurm", cpus=0.5), tmp_path)
    with pytest.raises(UsageError, match="whole processors"):
        next(executor.run([], deadline=0))


if __name__ == "__main__":  # scripts/soak slurm [SEEDS]
    with tempfile.TemporaryDirectory() as place:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
        kill_a_node(Path(place), count)
        print(f"{2 * count} runs on three nodes, one killed: as the local executor's, bit for bit")
