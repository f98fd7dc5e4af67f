"""``python -m tests.validation.slurm_studies SCENARIO FOLDER``: studies on a small Slurm cluster.

Prints what happened as one JSON object. It is a process of its own because what a cluster leaves behind
becomes its child.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfguard.errors import HalfguardError, UsageError
from halfguard.records.study import RunResult
from halfguard.validation.executors import slurm
from halfguard.validation.runs.task import Task, run_tasks
from halfguard.validation.spec import ExecutorSpec, Spec
from halfguard.validation.study import Progress, run_study
from tests.validation.helper import spec_of
from tests.validation.slurm_cluster import SlurmCluster

Answer = dict[str, Any]


def study_spec(seeds: int, executor: str = "slurm") -> Spec:
    """Two runs for each seed, of a second and the time to start each."""
    return spec_of("slow", steps=20, seeds=seeds, executor=executor)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _started(root: Path) -> list[int]:
    return [int(line.split()[1]) for line in _lines(root / "STARTED")]


def _wait_for(condition: Callable[[], bool], seconds: float = 180) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError
        time.sleep(0.05)


class NodeKiller:
    """After some results, kills the node on which the next run starts."""

    def __init__(self, cluster: SlurmCluster, root: Path, results: int) -> None:
        self.cluster, self.root, self.results = cluster, root, results
        self.killed = ""

    def __call__(self, progress: Progress) -> None:
        if self.killed or progress.done < self.results or progress.last is None:
            return
        before = len(_started(self.root))
        _wait_for(lambda: len(_started(self.root)) > before)
        self.killed = self.cluster.node_of(_started(self.root)[-1])
        self.cluster.kill_node(self.killed)


def killed_node(root: Path, seeds: str) -> Answer:
    """A study of two runs for each seed on three nodes, one of which is killed in the middle."""
    with SlurmCluster(nodes=3) as cluster:
        killer = NodeKiller(cluster, root, results=int(seeds) * 2 // 3)
        run_study(study_spec(int(seeds)), root / "study", on_progress=killer)
    return {"killed": killer.killed, "finished": len(_lines(root / "FINISHED"))}


def killed_study(root: Path) -> Answer:
    """The study's process is killed while two runs are running; the same command resumes it."""
    with SlurmCluster(nodes=2):
        command = [sys.executable, "-m", __spec__.name, "sweep", str(root)]
        process = subprocess.Popen(command)
        try:
            _wait_for(lambda: len(_lines(root / "FINISHED")) >= 1 and len(_started(root)) >= 3)
        finally:  # else it would outlive a wait that failed, and hold the pipes of this process open
            process.kill()
            process.wait()
        before = len(list((root / "study/runs").glob("run-*.json")))
        # Runs end while nobody waits for them; the next start takes their replies.
        _wait_for(lambda: len(list((root / "study/slurm").glob("*.reply.json"))) >= 2)
        sweep(root)
        left = [path.name for path in (root / "study").iterdir()]
    return {"before": before, "started": len(_started(root)), "left": left}


def sweep(root: Path) -> Answer:
    run_study(study_spec(seeds=3), root / "study")
    return {}


def small_cluster(root: Path) -> Answer:
    """One node: runs that die, a time budget that ends, jobs that Slurm refuses, no controller."""
    os.environ["HALFGUARD_TEST_DEATHS"] = str(root)
    for seed, deaths in ((0, 1), (1, 1000)):
        (root / str(seed)).write_text(str(deaths))
    with SlurmCluster(nodes=1) as cluster:
        dying = [task for task in run_tasks(spec_of("dying")) if task.candidate == "fp32"]
        answer: Answer = {"dying": _results(root, dying, 200), "deadline": _deadline(root)}
        answer["refused"] = _error(root, ExecutorSpec(kind="slurm", options=("--partition=x",)))
        answer["mistake"] = _error(root, ExecutorSpec(kind="slurm"), job="no_such_job")
        answer["left"] = (root / "slurm").exists()
        _wait_for(lambda: not _queue(), 20)  # every job was cancelled, or is about to exit
        cluster.stop_controller()
        answer["silent"] = _error(root, ExecutorSpec(kind="slurm"))
        cluster.start_controller()
    return answer


def _queue() -> str:
    return subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout


def _results(root: Path, tasks: list[Task], seconds: float) -> list[tuple[Any, ...]]:
    executor = slurm.SlurmExecutor(ExecutorSpec(kind="slurm"), root)
    found = executor.run(tasks, deadline=time.monotonic() + seconds)
    results = [one for _, one in found if isinstance(one, RunResult)]
    return sorted((one.seed, one.attempt, one.cause, one.failure) for one in results)


def _deadline(root: Path) -> list[tuple[Any, ...]]:
    """Two runs that never end and a node for one of them; the time ends when one has started."""
    started = len(_started(root))
    original = time.monotonic
    slurm.time.monotonic = lambda: original() + (1000 if len(_started(root)) > started else 0)  # type: ignore[attr-defined]
    try:
        return _results(root, run_tasks(spec_of("slow", steps=100_000))[:2], 500)
    finally:
        slurm.time.monotonic = original  # type: ignore[attr-defined]


def _error(root: Path, spec: ExecutorSpec, job: str = "slow") -> str:
    tasks = run_tasks(spec_of(job))[:2]
    try:
        list(slurm.SlurmExecutor(spec, root).run(tasks, deadline=time.monotonic() + 100))
    except HalfguardError as error:
        return f"{'usage' if isinstance(error, UsageError) else 'other'}: {error}"
    return "no error"


def main(scenario: str, folder: str, *options: str) -> None:
    root = Path(folder)
    for name in ("STARTED", "FINISHED"):
        os.environ[f"HALFGUARD_TEST_{name}"] = str(root / name)
    os.environ["HALFGUARD_TEST_SLEEP"] = "0.05"
    slurm._SLURM_POLL = 1.0  # there are no other users
    scenarios: dict[str, Callable[..., Answer]] = {
        one.__name__: one for one in (killed_node, killed_study, small_cluster, sweep)
    }
    print(json.dumps(scenarios[scenario](root, *options)))


if __name__ == "__main__":
    main(*sys.argv[1:])
