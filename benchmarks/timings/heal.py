"""Measure the time per step of a job that overflows in every second to fiftieth batch, once it is healed.

Beside it: the same steps with ``retry_fp32`` alone, and in FP32. On one thread, in processor seconds,
interleaved; each round trains 50 steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.models.planted import PERIODIC
from benchmarks.table import print_table, rounds_parser
from halfguard.guard.guard import Guard
from halfguard.workload import Workload
from halfguard.workload.timing import time_interleaved

STEPS = 50
RETRY: dict[str, Any] = {"skip": {"on_nonfinite": "retry_fp32"}}
CONFIGS: dict[str, dict[str, Any]] = {
    "FP32": {"precision": "fp32"},
    "retry_fp32": RETRY,
    "healed": RETRY | {"heal": {}},
}


def runs_of(job: Callable[[int], Workload], every: int) -> dict[str, Callable[[], object]]:
    """Return a function per configuration that trains STEPS steps; runs are healed before."""
    return {name: _run_of(job(0), config, 3 * every) for name, config in CONFIGS.items()}


def _run_of(work: Workload, config: dict[str, Any], before: int) -> Callable[[], object]:
    guard = Guard(work.model, work.optimizer, config)
    for batch in work.take(before):
        guard.step(work.loss, batch)
    batches = list(work.take(STEPS))

    def run() -> None:
        for batch in batches:
            guard.step(work.loss, batch)

    return run


make_parser = partial(rounds_parser, __doc__, 7)


def main() -> None:
    """Print a table per job."""
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rounds = make_parser().parse_args().rounds
    for planted in PERIODIC:
        runs = runs_of(planted.job, planted.every)
        seconds = time_interleaved(runs, rounds=rounds, clock=time.process_time)
        title = f"{planted.name}, every {planted.every}: {STEPS} steps"
        print_table(title, seconds, against="FP32")


if __name__ == "__main__":
    main()
