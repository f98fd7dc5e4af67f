"""Train with DDP on two CPU ranks, every case in one launch, because starting ranks takes longest.

``torchrun --nproc-per-node=2 -m tests.integrations.accelerate_ranks FOLDER``
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

from tests.integrations.accelerate_runs import RETRY, Batch, Loop, batches

STEPS = 4


def data_of(rank: int, accumulate: int, fault: str) -> list[Batch]:
    data = batches(STEPS * accumulate, seed=rank)
    bad = slice(accumulate, 2 * accumulate)  # the second step
    if fault == "without":
        return data[: bad.start] + data[bad.stop :]
    if fault == "nan" and rank == 1:  # on one rank only
        data[accumulate]["x"][0, 0] = torch.nan
    return data


def train(who: str, fault: str, accumulate: int) -> dict[str, Any]:
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    loop = Loop(
        guard=RETRY if who == "guarded" else None,
        precision="no" if who == "fp32" else "fp16",
        accumulate=accumulate,
        max_norm=0.5,
        overflow=fault == "overflow",
        dropout=0.0,
    )
    assert isinstance(loop.model, torch.nn.parallel.DistributedDataParallel)
    loop.fit(data_of(PartialState().process_index, accumulate, fault))
    counts = loop.counts if who == "guarded" else None
    return loop.state() | {
        "dtypes": sorted(map(str, loop.plain.dtypes)),
        "counts": None if counts is None else [counts.retried, sum(counts.skipped.values())],
    }


def main(folder: Path) -> None:
    state = PartialState(cpu=True)
    cases = [("stock", "none"), ("guarded", "none"), ("fp32", "overflow"), ("guarded", "overflow")]
    cases += [("stock", "without"), ("guarded", "nan")]
    results = {
        f"{who} {fault} {accumulate}": train(who, fault, accumulate)
        for accumulate in (1, 4)
        for who, fault in cases
    }
    torch.save(results, folder / f"{state.process_index}.pt")
    state.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
