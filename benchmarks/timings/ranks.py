"""Compare a guarded step with bare DDP on two ranks, and measure one small all-reduce on this machine.

Two processes over gloo on the loopback take the same steps in turn: bare DDP (autocast, GradScaler,
clipping), bare a second time (its difference from the first is noise), guarded, and guarded with replicas
compared at every step. The target for the median is 1.03 of the bare step. Then the all-reduce that the guard
sends is measured alone.

``python -m benchmarks.timings.ranks [--rounds N] [--ranks N]``
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

import torch
import torch.distributed as dist
from tests.support.ranks import Ranks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from benchmarks.table import print_table
from benchmarks.timings.guard import MAX_NORM, GPT2Like, bare, next_token
from halfguard.guard.guard import Guard
from halfguard.records.cost import Spread
from halfguard.workload.timing import time_interleaved


def steps(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each kind of step on this rank."""
    torch.manual_seed(0)
    model = GPT2Like(vocabulary=8192)
    tokens = torch.randint(8192, (2, 129), generator=torch.Generator().manual_seed(dist.get_rank()))

    def contestant(config: dict[str, Any] | None) -> Any:
        wrapped = DistributedDataParallel(copy.deepcopy(model))
        optimizer = AdamW(wrapped.parameters(), lr=1e-4, fused=True)
        if config is None:
            return bare(wrapped, optimizer, next_token, tokens)
        common = {"clip": {"max_norm": MAX_NORM}, "scale": {"init": 1024.0}}
        guard = Guard(wrapped, optimizer, common | config)
        return lambda: guard.step(next_token, tokens)

    return time_interleaved(
        {
            "bare DDP": contestant(None),
            "bare DDP again": contestant(None),
            "guarded": contestant({}),
            "guarded, compared every step": contestant({"desync": {"every": 1}}),
        },
        rounds=rounds,
    )


def sums(count: int) -> list[float]:
    """Return the seconds of each blocking all-reduce of 24 bytes."""
    values = torch.ones(3, dtype=torch.float64)
    seconds = []
    for _ in range(count):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        seconds.append(time.perf_counter() - start)
    return seconds


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    return parser


def main() -> None:
    options = make_parser().parse_args()
    group = Ranks(2)
    seconds = group.run(steps, options.rounds, timeout=1800)[0]
    group.close()
    print_table("GPT-2-like, 14M parameters, 2 ranks over gloo", seconds, against="bare DDP")
    print("\none sum of 24 bytes over gloo on the loopback, two cores: microseconds [quartiles]")
    for ranks in options.ranks:
        group = Ranks(ranks)
        spread = Spread.of([1e6 * second for second in group.run(sums, 300)[0]])
        group.close()
        print(f"{ranks:3d} ranks   {spread.median:6.0f} [{spread.low:.0f}, {spread.high:.0f}]")


if __name__ == "__main__":
    main()
