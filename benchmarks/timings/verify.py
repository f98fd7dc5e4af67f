"""Measure the cost of ``verify``: a step that is run again and compared, beside a guarded step that is not.

Whole guarded steps, optimizer included, on one thread, in processor seconds, interleaved. "guarded again" is
the guard without ``verify`` a second time: its difference from 1 is noise. The line below each table spreads
the cost of one verified step over the default interval. What other steps cost, nothing, is counted in
``tests/guard/test_verify.py``.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from benchmarks.table import print_table, rounds_parser
from benchmarks.timings.watch import guarded, jobs
from halfguard.guard.config import VerifyConfig
from halfguard.workload.timing import ratios, time_interleaved

STEPS: dict[str, dict[str, Any]] = {
    "guarded": {},
    "guarded again": {},
    "verified": {"verify": {"every": 1}},
}


make_parser = partial(rounds_parser, __doc__, 15)


def main() -> None:
    rounds = make_parser().parse_args().rounds
    torch.set_num_threads(1)
    every = VerifyConfig().every
    for name, (make, loss, batch, config) in reversed(jobs().items()):
        steps = {who: guarded(make, loss, batch, config | more) for who, more in STEPS.items()}
        seconds = time_interleaved(steps, rounds=rounds, clock=time.process_time)
        print_table(name, seconds, against="guarded")
        extra = ratios(seconds, against="guarded")["verified"].median - 1
        print(f"over {every} steps: {1 + extra / every:.5f}")


if __name__ == "__main__":
    main()
