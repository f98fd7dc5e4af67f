"""Runs of transformers' Trainer under DDP, and of TRL's under FSDP2, on CPU ranks started by torchrun.

``torchrun --nproc-per-node=2 -m tests.integrations.trainer_ranks FOLDER KIND``: ranks take micro-batches in
turn. KIND is ddp, sft, dpo or grpo; the states go to FOLDER/KIND-RANK.pt. With ``kill``, a run of SFT
is killed in the middle of a step after a checkpoint; a launch with ``resume`` continues it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerCallback

from halfguard.errors import UsageError
from halfguard.integrations.accelerate import reduce_in_fp32
from halfguard.numerics.tensor_rows import local_tensor
from tests.dist.count_collectives import Calls
from tests.integrations import transformers_runs
from tests.integrations.accelerate_runs import Batch, Sharded
from tests.integrations.step_counts import StepCounts
from tests.integrations.trl_runs import make, rows

RETRY = {"skip": {"on_nonfinite": "retry_fp32"}}
RANKS = int(os.environ.get("WORLD_SIZE", "2"))
BATCHES = 4 * RANKS  # of one rank each
SAVED = 2  # steps
SAVING = {"guard": RETRY, "save_strategy": "steps", "save_steps": SAVED}
SHARDED: dict[str, Any] = {
    "fsdp": True,
    "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    "ddp_backend": "gloo",
    "use_cpu": True,
}
STRICT: dict[str, Any] = {"guard": {"strict": True}}  # and gradients are added in half
RUNS: dict[str, dict[str, Any]] = {
    "stock": {},
    "healthy": {"guard": RETRY},
    "fp32": {"fp16": False, "overflow": True},
    "retried": {"guard": RETRY, "overflow": True},
    "without": {"data": "without"},
    "nan": {"guard": RETRY, "data": "nan"},
}


def data_of(kind: str, fault: str) -> list[Any]:
    """Return a row for each micro-batch of each rank; one of the second step is bad, or the step left out."""
    bad = RANKS + 1 if fault == "nan" else None
    if kind == "ddp":  # four samples for each micro-batch
        found: list[Any] = transformers_runs.samples(BATCHES, nan_batch=bad)
        step = 4 * RANKS
    else:
        found, step = rows(kind, BATCHES, bad=bad), RANKS
    return found[:step] + found[2 * step :] if fault == "without" else found


class WithLoss(Sharded):
    """The sharded model of Accelerate's tests, with a loss."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"loss": nn.functional.cross_entropy(super().forward(x), labels)}


def plain(
    folder: Path, data: list[Batch], guard: dict[str, Any] | None, accumulate: int, clip: float
) -> Any:
    """Return a Trainer of that model; each batch is one micro-batch of one rank."""
    for shared in (AcceleratorState, GradientState):
        shared._reset_state()
    torch.manual_seed(0)
    args = transformers_runs.arguments(
        folder,
        **SHARDED | {"fsdp_config": {"transformer_layer_cls_to_wrap": ["Block"]}},
        gradient_accumulation_steps=accumulate,
        max_grad_norm=clip,
        logging_strategy="no",
    )
    each = [
        {name: values[row] for name, values in batch.items()}
        for batch in data
        for row in range(len(batch["labels"]))
    ]
    given: dict[str, Any] = {"args": args, "train_dataset": each}
    if guard is None:
        trainer: Any = transformers_runs.StockTrainer(WithLoss(dropout=0.0), **given)
    else:
        config = {"scale": {"init": transformers_runs.INIT_SCALE}} | guard
        trainer = transformers_runs.Guarded(WithLoss(dropout=0.0), **given, guard=config)
    reduce_in_fp32(trainer.accelerator)
    return trainer


def state(trainer: Any) -> dict[str, Any]:
    moments = trainer.optimizer.state_dict()["state"]
    found: dict[str, Any] = {
        "model": {k: local_tensor(v).clone() for k, v in trainer.model.state_dict().items()},
        "optimizer": {
            number: {name: local_tensor(value).clone() for name, value in held.items()}
            for number, held in moments.items()
        },
        "dtypes": sorted(map(str, trainer.model.dtypes)),
    }
    if getattr(trainer, "guard", None) is not None:
        counts = trainer.guard.counts
        found["counts"] = [counts.applied, counts.retried, sum(counts.skipped.values())]
    return found


def train(
    kind: str,
    folder: Path,
    how: dict[str, Any],
    *callbacks: TrainerCallback,
    path: Path | None = None,
) -> dict[str, Any]:
    for shared in (AcceleratorState, GradientState):
        shared._reset_state()
    given = {name: value for name, value in how.items() if name != "data"}
    data = data_of(kind, how.get("data", ""))
    if kind == "ddp":
        trainer = transformers_runs.make(folder, data, ddp_backend="gloo", **given)
    else:
        trainer = make(kind, folder, data, **SHARDED, **given)
        if how.get("fp16", True) and how is not STRICT:
            reduce_in_fp32(trainer.accelerator)
    for callback in callbacks:
        trainer.add_callback(callback)
    try:
        trainer.train(resume_from_checkpoint=None if path is None else str(path))
    except UsageError as error:
        return {"error": str(error)}
    assert isinstance(trainer.model, FSDPModule) == (kind != "ddp")
    return state(trainer)


class Killed(TrainerCallback):
    """Kills this rank in the step after the checkpoint, between its backward pass and its update."""

    def on_pre_optimizer_step(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step == SAVED:
            os.kill(os.getpid(), signal.SIGKILL)


class Counted(TrainerCallback):
    """Counts while a step runs."""

    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._counts.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._counts.end()


def counts(kind: str, folder: Path, how: dict[str, Any]) -> list[tuple[Calls, int]]:
    """Return the collectives and host syncs of each step of a healthy run."""
    for shared in (AcceleratorState, GradientState):
        shared._reset_state()
    trainer, counted = make(kind, folder, rows(kind, 2 * BATCHES), **SHARDED, **how), StepCounts()
    reduce_in_fp32(trainer.accelerator)
    trainer.add_callback(Counted(counted))
    trainer.train()
    return counted.steps


def runs(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "kill":
        train("sft", folder / "parts", SAVING, Killed())
    if kind == "resume":
        parts = folder / "parts"
        return {"resumed": train("sft", parts, SAVING, path=parts / f"checkpoint-{SAVED}")}
    found: dict[str, Any] = {
        f"{name} 1": train(kind, folder / name, how) for name, how in RUNS.items()
    }
    if kind == "ddp":
        return found
    found["strict"] = train(kind, folder / "strict", STRICT)["error"]
    for who, run in (("stock", "stock"), ("guarded", "healthy")):
        for optim, clip in (("adamw_torch", 0.5), ("adamw_torch_fused", 0.0)):
            how = RUNS[run] | {"clip": clip, "optim": optim}
            found[f"counts {who} {optim}"] = counts(kind, folder / who, how)
    return found


def main(folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    found = runs(kind, Path(folder))
    torch.save(found, Path(folder, f"{kind}-{PartialState().process_index}.pt"))
    PartialState().destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
