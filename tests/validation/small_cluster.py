"""``python -m tests.validation.small_cluster FOLDER``: one Ray node, too small for all that is asked of it.

Prints what came of it as one JSON object. It is a process of its own because Ray leaves traces in the one
that starts it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import ray

from halfguard.errors import UsageError
from halfguard.records.study import RunResult
from halfguard.validation.executors import ray as executor
from halfguard.validation.runs.task import run_tasks
from halfguard.validation.sections import ExecutorSpec
from tests.validation.helper import spec_of


def cut(started: Path) -> list[tuple[str | None, int]]:
    """Two runs that never end and a node for one of them; the time is up as soon as one has begun."""
    clock: Any = types.SimpleNamespace(monotonic=lambda: math.inf if started.exists() else 0.0)
    executor.time = clock  # type: ignore[attr-defined]
    tasks = run_tasks(spec_of("slow", steps=100_000))[:2]
    found = executor.RayExecutor(ExecutorSpec(kind="ray")).run(tasks, deadline=1.0)
    return [(one.cause, one.seed) for _, one in found if isinstance(one, RunResult)]


def told(resources: dict[str, float]) -> str:
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


def main(folder: str) -> None:
    started = Path(folder) / "started"
    os.environ["HALFGUARD_TEST_STARTED"] = str(started)  # before Ray starts what starts the workers
    os.environ["HALFGUARD_TEST_SLEEP"] = "0.05"
    ray.init(num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False)
    answer: dict[str, Any] = {"cut": cut(started), "joined": told({"x": 1})}
    ray.shutdown()
    answer["own"] = told({})
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
