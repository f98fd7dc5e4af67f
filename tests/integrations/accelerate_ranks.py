"""Train with Accelerate on CPU ranks; every case in one launch, because starting ranks takes longest.

``torchrun --nproc-per-node=2 -m tests.integrations.accelerate_ranks FOLDER ddp``, or ``fsdp`` for FSDP2. Its
last case saves a checkpoint and is killed in the middle of a later step; ``resume`` continues it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel

from halfguard.errors import UsageError
from tests.dist.count_collectives import Calls
from tests.integrations.accelerate_runs import RETRY, SKIP, Batch, Loop, batches, loss_fn
from tests.integrations.step_counts import StepCounts

STEPS, SAVED = 6, 3
CASES = {
    "stock": ("stock", "none"),
    "healthy": ("guarded", "none"),
    "fp32": ("fp32", "overflow"),
    "retried": ("guarded", "overflow"),
    "without": ("stock", "without"),
    "nan": ("guarded", "nan"),
}
SHARDED_CASES = {"large": ("guarded", "large"), "large, skipped": ("skipping", "large")}


def data_of(rank: int, accumulate: int, fault: str) -> list[Batch]:
    data = batches(STEPS * accumulate, seed=rank)
    bad = slice(accumulate, 2 * accumulate)  # the second step
    if fault == "without":
        return data[: bad.start] + data[bad.stop :]
    if rank == 1 and fault == "nan":  # on one rank only
        data[accumulate]["x"][0, 0] = torch.nan
    if rank == 1 and fault == "large":
        data[accumulate]["x"][0] = 1e5  # leaves the range of half
    return data


def make(who: str, fault: str = "none", accumulate: int = 1, **changed: Any) -> Loop:
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    given: dict[str, Any] = {
        "guard": None if who in {"stock", "fp32"} else SKIP if who == "skipping" else RETRY,
        "precision": "no" if who == "fp32" else "fp16",
        "accumulate": accumulate,
        "max_norm": 0.5,
        "overflow": fault == "overflow",
        "sharded": True,
    }
    loop = Loop(**given | changed)
    assert isinstance(loop.model, FSDPModule if loop.sharded else DistributedDataParallel)
    return loop


def outcome(loop: Loop) -> dict[str, Any]:
    found = loop.state() | {"dtypes": sorted(map(str, loop.plain.dtypes))}
    if loop.attached is not None:
        counts = loop.counts
        found["counts"] = [counts.applied, counts.retried, sum(counts.skipped.values())]
    return found


def train(rank: int, case: tuple[str, str], accumulate: int, *, sharded: bool) -> dict[str, Any]:
    who, fault = case
    dropout = 0.1 if fault in {"none", "large"} else 0.0
    loop = make(who, fault, accumulate, dropout=dropout, sharded=sharded)
    return outcome(loop.fit(data_of(rank, accumulate, fault)))


def counts(rank: int, who: str, max_norm: float | None) -> list[tuple[Calls, int]]:
    """Return the collectives of each step, with their bytes, and its host syncs."""
    loop, counts = make(who, max_norm=max_norm), StepCounts()
    for batch in data_of(rank, 1, "none"):
        counts.begin()
        loop.fit([batch])
        counts.end()
    return counts.steps


def strict_error() -> str:
    """Return why a strict guard does not begin a run whose policy adds in half."""
    half = MixedPrecisionPolicy(param_dtype=torch.float16)
    loop = make("guarded", guard={"strict": True}, given={"policy": half})
    try:
        loop.fit(batches(1))
    except UsageError as error:
        return str(error)
    return ""


def die(rank: int, folder: Path) -> None:
    """Train, save, train on, and be killed in the middle of a step."""
    loop, data = make("guarded"), data_of(rank, 1, "large")
    loop.fit(data[:SAVED])
    loop.accelerator.save_state(str(folder / "checkpoint"))
    loop.fit(data[SAVED : SAVED + 1])
    loop.accelerator.wait_for_everyone()
    loop.accelerator.backward(loop.attached.forward(loss_fn, data[SAVED + 1]))  # type: ignore[union-attr]
    os.kill(os.getpid(), signal.SIGKILL)


def resume(rank: int, folder: Path) -> dict[str, Any]:
    loop = make("guarded")
    torch.manual_seed(99)  # the checkpoint has the generators
    loop.accelerator.load_state(str(folder / "checkpoint"))
    return outcome(loop.fit(data_of(rank, 1, "large")[SAVED:]))


def main(folder: Path, how: str) -> None:
    state = PartialState(cpu=True)
    rank, sharded = state.process_index, how == "fsdp"
    results: dict[str, Any] = {}
    if how == "resume":
        results["resumed"] = resume(rank, folder)
    else:
        cases = CASES | SHARDED_CASES if sharded else CASES
        results = {
            f"{name} {accumulate}": train(rank, case, accumulate, sharded=sharded)
            for accumulate in (1, 3)
            for name, case in cases.items()
        }
    if sharded:
        for who in ("stock", "guarded"):
            for max_norm in (None, 0.5):
                results[f"counts {who} {max_norm}"] = counts(rank, who, max_norm)
        results["strict"] = strict_error()
    torch.save(results, folder / f"{how}-{rank}.pt")
    if sharded:
        die(rank, folder)
    state.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
