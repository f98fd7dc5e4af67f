"""A real Ray cluster of three nodes, one of them killed in the middle of the sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halfguard.records.study import Study
from halfguard.validation.executors.local import LocalExecutor
from halfguard.validation.study import run_study
from tests.validation.helper import numbers
from tests.validation.ray_studies import cluster_spec

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.alone]


def on_a_cluster(scenario: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.validation.ray_studies", scenario, str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            out, said = process.communicate(timeout=600)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said.decode()
    return json.loads(out.splitlines()[-1])


def test_a_killed_node_costs_a_run_and_nothing_else(tmp_path: Path) -> None:
    answer = on_a_cluster("killed_node", tmp_path)
    study = Study.from_json((tmp_path / "study/study.json").read_bytes())
    assert answer["killed"]
    assert len(study.runs) == 6
    assert all(run.failure is None for run in study.runs)
    assert max(run.attempt for run in study.runs) >= 2  # the node died with a run on it
    assert answer["finished"] == 6  # and nothing that had finished was run again
    assert len(study.speeds) == 1

    local = run_study(cluster_spec(), tmp_path / "local", LocalExecutor(2))
    assert [numbers(run) for run in study.runs] == [numbers(run) for run in local.runs]


def test_a_small_cluster_says_what_it_could_not_end_and_what_it_can_never_hold(
    tmp_path: Path,
) -> None:
    answer = on_a_cluster("small_cluster", tmp_path)
    assert answer["cut"] == [["budget", 0]]  # the one that had begun, and not the one that waited
    asked = "no node of the Ray cluster can run a task that needs 1 CPU, 4 GPU"
    assert f"{asked}, 1 x; the largest has 1 CPU, 0 GPU, 0 x. Runs wait" in answer["joined"]
    assert answer["own"].startswith(f"refused: executor: {asked}; the largest has ")


def test_whatever_had_ended_or_begun_by_the_deadline_is_known(tmp_path: Path) -> None:
    answer = on_a_cluster("late_driver", tmp_path)
    assert answer == {"short": ["ended", "ended"], "endless": ["budget", "budget"]}
