"""``python -m tests.validation.ray_studies SCENARIO FOLDER``: studies on a small Ray cluster.

Prints what happened as one JSON object. It is a process of its own because Ray leaves traces in the one
that starts it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from halfguard.errors import UsageError
from halfguard.records.study import RunResult
from halfguard.validation.executors import ray as executor
from halfguard.validation.runs.task import run_tasks
from halfguard.validation.spec import ExecutorSpec, Spec
from halfguard.validation.study import Progress, run_study
from tests.validation.helper import alive, spec_of

Answer = dict[str, Any]
NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 100 * 10**6,
    "include_dashboard": False,
}
RUNS = 2


def cluster_spec(address: str | None = None) -> Spec:
    executor = {"kind": "ray", "address": address} if address else "local"
    return spec_of("slow", steps=40, seeds=3, executor=executor)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Killer:
    """After the first result, kills a node on which the next run has begun."""

    def __init__(self, cluster: Cluster, nodes: list[Any], started: Path) -> None:
        self.cluster, self.nodes, self.started = cluster, nodes, started
        self.killed = False

    def __call__(self, progress: Progress) -> None:
        if self.killed or not isinstance(progress.last, RunResult):
            return
        before, give_up = self._begun(), time.monotonic() + 60
        while not self.killed and time.monotonic() < give_up:
            for node in self.nodes:
                if self._has_begun(node, before):
                    self.cluster.remove_node(node, allow_graceful=False)
                    self.killed = True
                    return
            time.sleep(0.05)

    def _has_begun(self, node: Any, before: set[int]) -> bool:
        """Whether a run began on the node just now: it has seconds of training before it."""
        raylet = node.all_processes["raylet"][0].process.pid
        return any(_parent(pid) == raylet for pid in self._begun() - before if alive(pid))

    def _begun(self) -> set[int]:
        return {int(line.split()[1]) for line in self.started.read_text().splitlines()}


def killed_node(root: Path) -> Answer:
    """A study on three nodes, one of which is killed."""
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        nodes = [cluster.add_node(**NODE) for _ in range(2)]
        killer = Killer(cluster, nodes, root / "STARTED")
        study = run_study(cluster_spec(cluster.address), root / "study", on_progress=killer)
    finally:
        cluster.shutdown()
    finished = (root / "FINISHED").read_text().splitlines()
    return {"killed": killer.killed, "finished": len(finished), "runs": len(study.runs)}


def small_cluster(root: Path) -> Answer:
    """One node, too small for all that is asked of it."""
    ray.init(num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False)
    answer: Answer = {"cut": _cut(root / "STARTED"), "joined": _told({"x": 1})}
    ray.shutdown()
    return answer | {"own": _told({})}


def _cut(started: Path) -> list[tuple[str | None, int]]:
    """Two runs that never end and a node for one of them; the time is up as soon as one has begun."""
    clock: Any = types.SimpleNamespace(monotonic=lambda: math.inf if started.exists() else 0.0)
    executor.time = clock  # type: ignore[attr-defined]
    tasks = run_tasks(spec_of("slow", steps=100_000))[:2]
    found = executor.RayExecutor(ExecutorSpec(kind="ray")).run(tasks, deadline=1.0)
    return [(one.cause, one.seed) for _, one in found if isinstance(one, RunResult)]


def _told(resources: dict[str, float]) -> str:
    """What is said of a run that no node can hold."""
    spec = ExecutorSpec(kind="ray", gpus=4, resources=resources)
    found = executor.RayExecutor(spec).run(run_tasks(spec_of("healthy", seeds=1)), deadline=0.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        try:
            list(found)
        except UsageError as error:
            return f"refused: {error}"
    return next((str(one.message) for one in said if "executor" in str(one.message)), "")


def late_driver(root: Path) -> Answer:
    """Ray's news, read at the deadline only."""
    started = root / "STARTED"
    ray.init(num_cpus=RUNS, num_gpus=0, include_dashboard=False, log_to_driver=False)
    answer = {"short": _causes(2, root / "FINISHED", free=RUNS)}
    started.unlink()
    answer["endless"] = _causes(100_000, started, free=0)
    ray.shutdown()
    return answer


def _all_wrote(file: Path, free: int) -> bool:
    """Whether every run has written there, and so many processors have nothing to do."""
    told = file.exists() and len(file.read_text().splitlines()) == RUNS
    return told and ray.available_resources().get("CPU", 0) == free


def _causes(steps: int, file: Path, free: int) -> list[str | None]:
    """How two runs of so many steps ended, if both had told so in ``file`` before anybody asked."""

    @functools.cache
    def late() -> float:
        give_up = time.monotonic() + 100
        while not _all_wrote(file, free) and time.monotonic() < give_up:
            time.sleep(0.1)
        time.sleep(6)  # until Ray knows it too, on a busy machine
        return math.inf

    clock: Any = types.SimpleNamespace(monotonic=late)
    executor.time = clock  # type: ignore[attr-defined]
    tasks = run_tasks(spec_of("slow", steps=steps))[:RUNS]
    found = list(executor.RayExecutor(ExecutorSpec(kind="ray")).run(tasks, deadline=1.0))
    return [one.cause if one.failure else "ended" for _, one in found if isinstance(one, RunResult)]


def main(scenario: str, folder: str) -> None:
    root = Path(folder)
    for name in ("STARTED", "FINISHED"):  # before Ray starts what starts the workers
        os.environ[f"HALFGUARD_TEST_{name}"] = str(root / name)
    os.environ["HALFGUARD_TEST_SLEEP"] = "0.05"
    scenarios: dict[str, Callable[[Path], Answer]] = {
        one.__name__: one for one in (killed_node, small_cluster, late_driver)
    }
    print(json.dumps(scenarios[scenario](root)))


if __name__ == "__main__":
    main(*sys.argv[1:])
