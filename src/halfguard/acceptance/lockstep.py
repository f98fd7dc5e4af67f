"""Check that two ranks take the same action at every step, and keep the same weights, if one has a bad batch.

Each rank is a process of its own: two GPUs with NCCL, or two processes on the CPU with gloo. A rank that
hangs is killed, and the check fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from halfguard.acceptance.setting import Cases, NotRunError, Setting
from halfguard.dist.collectives import nccl_is_available
from halfguard.records.acceptance import AcceptanceCase

NAME = "lockstep"
CLAIM = (
    "Two ranks act alike at every step if one of them has a bad batch, and keep the same weights."
)

RANKS, SECONDS = 2, 180.0
_SOURCES = Path(__file__).parents[2]


def run(setting: Setting) -> Cases:
    """Yield a case for each fault of one rank, and for the weights at the end."""
    backend = _backend(setting)
    answers = _run_ranks(setting, backend)
    for fault in answers[0]["faults"]:
        actions = [answer["faults"][fault] for answer in answers]
        alike = all(action == actions[0] for action in actions)
        problem = "" if alike else f"the ranks acted differently: {actions}"
        expected = answers[0]["expected"][fault]
        if alike and actions[0] != expected:
            problem = f"all ranks did {actions[0]} instead of {expected}"
        yield AcceptanceCase.judged(f"{fault}, {backend}", problem)
    equal = len({answer["digest"] for answer in answers}) == 1
    problem = "" if equal else "the weights of the ranks differ"
    yield AcceptanceCase.judged(f"replicas, {backend}", problem)
    problem = next((answer["difference"] for answer in answers if answer["difference"]), "")
    steps = answers[0]["steps"]
    yield AcceptanceCase.judged(f"against bare ranks, {backend}", problem, ranks=RANKS, steps=steps)


def _backend(setting: Setting) -> str:
    kind = setting.device.type
    if kind == "cpu":
        return "gloo"
    if kind != "cuda":
        raise NotRunError(f"It needs NCCL; torch has no collectives for {kind} here.")
    count = setting.module.device_count()
    if count < RANKS:
        raise NotRunError(f"It needs {RANKS} GPUs; this machine has {count}.")
    if not nccl_is_available():
        raise NotRunError("This build of torch has no NCCL.")
    return "nccl"


def _run_ranks(setting: Setting, backend: str) -> list[dict[str, Any]]:
    """Start the ranks and return their answers; kill all of them if one fails or hangs."""
    folder = setting.folder
    command = [sys.executable, "-m", "halfguard.acceptance.rank", backend, str(folder)]
    path = os.pathsep.join(filter(None, (str(_SOURCES), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    logs = [folder / f"rank{rank}.log" for rank in range(RANKS)]
    processes = []
    try:
        for rank, log in enumerate(logs):
            with log.open("w") as file:
                processes.append(
                    subprocess.Popen(  # noqa: S603 - our own module
                        [*command, str(rank), str(RANKS)],
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=environment,
                    )
                )
        codes = [process.wait(SECONDS) for process in processes]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"a rank did not finish in {SECONDS:g} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(codes):
        last = next(log for log, code in zip(logs, codes, strict=True) if code)
        raise RuntimeError(f"a rank failed: {last.read_text().strip().splitlines()[-1]}")
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
