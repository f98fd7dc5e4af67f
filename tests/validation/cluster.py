"""``python -m tests.validation.cluster FOLDER``: a study on three Ray nodes, one of which is killed.

Prints what happened as one JSON object. It is a process of its own because Ray leaves traces in the one
that starts it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from halfguard.records.study import RunResult
from halfguard.validation.spec import Spec
from halfguard.validation.study import Progress, run_study
from tests.validation.helper import spec_of
from tests.validation.processes import alive

NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 100 * 10**6,
    "include_dashboard": False,
}


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


def main(folder: str) -> None:
    root = Path(folder)
    for name in ("STARTED", "FINISHED"):
        os.environ[f"HALFGUARD_TEST_{name}"] = str(root / name)
    os.environ["HALFGUARD_TEST_SLEEP"] = "0.05"
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        nodes = [cluster.add_node(**NODE) for _ in range(2)]
        killer = Killer(cluster, nodes, root / "STARTED")
        study = run_study(cluster_spec(cluster.address), root / "study", on_progress=killer)
    finally:
        cluster.shutdown()
    finished = (root / "FINISHED").read_text().splitlines()
    print(json.dumps({"killed": killer.killed, "finished": len(finished), "runs": len(study.runs)}))


if __name__ == "__main__":
    main(sys.argv[1])
