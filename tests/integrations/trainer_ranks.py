"""Runs of transformers' Trainer on two ranks, started by torchrun with a FOLDER for the results.

Each rank takes every second batch; a NaN is in one of the second rank's. The states go to FOLDER/RUN-RANK.pt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.integrations.transformers_runs import make, samples, state

RETRY = {"skip": {"on_nonfinite": "retry_fp32"}}
DATA = samples(8)
NAN = [*DATA[:16], *samples(4, nan_batch=1), *DATA[16:]]  # a window: two batches on each rank
RUNS: dict[str, dict[str, Any]] = {
    "stock": {"data": DATA},
    "healthy": {"data": DATA, "guard": RETRY},
    "fp32": {"data": DATA, "fp16": False, "overflow": True},
    "retried": {"data": DATA, "guard": RETRY, "overflow": True},
    "nan": {"data": NAN, "guard": RETRY},
}


def main(folder: str) -> None:
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    for name, how in RUNS.items():
        trainer = make(Path(folder, name), **how, ddp_backend="gloo", gradient_accumulation_steps=2)
        trainer.train()
        found = state(trainer)
        if how.get("guard"):
            counts = trainer.guard.counts
            found["counts"] = [counts.applied, counts.retried, sum(counts.skipped.values())]
        torch.save(found, Path(folder, f"{name}-{rank}.pt"))


if __name__ == "__main__":
    main(sys.argv[1])
