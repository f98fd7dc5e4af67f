"""Train with Lightning on CPU ranks, every case in one launch.

``torchrun --nproc-per-node=2 -m tests.integrations.lightning_ranks FOLDER ddp``, or ``fsdp`` for FSDP2 by its
ModelParallelStrategy. Its last case is killed in the middle of a step after a checkpoint; a launch with
``resume`` continues it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader

from halfguard.errors import UsageError
from halfguard.numerics.tensor_rows import local_tensor
from tests.integrations.lightning_runs import (
    RETRY,
    Batch,
    Classifier,
    guard_plugin,
    overflow_everywhere,
    stock_plugin,
)
from tests.integrations.step_counts import StepCounts
from tests.support import quiet

BATCHES, SAVED = 12, 5
CASES = {
    "stock": ("stock", "none"),
    "healthy": ("guarded", "none"),
    "fp32": ("fp32", "overflow"),
    "retried": ("guarded", "overflow"),
    "without": ("stock", "without"),
    "nan": ("guarded", "nan"),
}
PLUGINS: dict[str, Any] = {
    "stock": stock_plugin,
    "guarded": lambda: guard_plugin(RETRY),
    "strict": lambda: guard_plugin({"strict": True}),
    "fp32": lambda: None,
}


class PerRank:
    """Batches of one rank: another half of the data on each."""

    def __init__(self, data: list[Batch]) -> None:
        self._data = data

    def __getitem__(self, index: int) -> Batch:
        return self._data[index]

    def __len__(self) -> int:
        return len(self._data)


def data_of(rank: int, accumulate: int, fault: str) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    ranks = int(os.environ["WORLD_SIZE"])
    inputs = [torch.randn(8, 12, generator=generator) for _ in range(BATCHES * ranks)]
    labels = [x[:, :4].argmax(1) for x in inputs]
    if fault == "overflow":
        inputs = [overflow_everywhere(0, x) for x in inputs]
    mine = list(zip(inputs, labels, strict=True))[rank::ranks]
    bad = slice(accumulate, 2 * accumulate)  # the second step
    if fault == "nan" and rank == 1:  # on one rank only
        mine[bad.start] = (mine[bad.start][0] * torch.nan, mine[bad.start][1])
    return mine[: bad.start] + mine[bad.stop :] if fault == "without" else mine


class Sharded(Classifier):
    """Shards its layers; half is computed in the dtype of FSDP2's policy and by autocast."""

    def __init__(self, half: bool, reduce: torch.dtype = torch.float32) -> None:
        super().__init__(dropout=0)
        self.reduce_dtype = reduce
        self.half_dtype = torch.float16 if half else None
        self.net = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 4))

    def configure_model(self) -> None:
        policy = MixedPrecisionPolicy(self.half_dtype, self.reduce_dtype)
        mesh = self.device_mesh["data_parallel"]  # type: ignore[index]
        for layer in (self.net[0], self.net[3], self.net):
            fully_shard(layer, mesh=mesh, mp_policy=policy)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        logits = self.net(inputs)
        self.dtypes.add(logits.dtype)
        return nn.functional.cross_entropy(logits.float(), labels)


class SaveAfter(Callback):
    """Saves a checkpoint in the middle of an epoch."""

    def __init__(self, batches: int, path: Path) -> None:
        self._batches, self._path = batches, path

    def on_train_batch_end(self, trainer: Trainer, *call: Any) -> None:
        if call[-1] + 1 == self._batches:
            trainer.save_checkpoint(self._path)


class Killed(Callback):
    """Kills this rank in a step after the checkpoint, between its backward pass and its update."""

    def on_before_optimizer_step(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == SAVED + 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Counted(Callback):
    """Counts while a step runs."""

    def __init__(self, counts: StepCounts) -> None:
        self._counts = counts

    def on_train_batch_start(self, *_: Any) -> None:
        self._counts.begin()

    def on_train_batch_end(self, *_: Any) -> None:
        self._counts.end()


def train(
    case: tuple[str, str], accumulate: int = 1, *, sharded: bool = True, **how: Any
) -> dict[str, Any]:
    who, fault = case
    data = data_of(int(os.environ["RANK"]), accumulate, fault)
    if "path" in how:  # Lightning counts the batches, and does not go on in the data
        data = data[SAVED:] + data[:SAVED]
    plugin = PLUGINS[who]()
    if sharded:
        reduce = torch.float16 if who == "strict" else torch.float32
        found, summary = fit(Sharded(who != "fp32", reduce), plugin, data, accumulate, **how)
    else:
        found, summary = fit(Classifier(dropout=0), plugin, data, accumulate, **how)
    if summary is not None:
        found["counts"] = [summary.applied, summary.retried, sum(summary.skipped.values())]
    return found


def fit(
    module: Classifier,
    plugin: Any,
    data: list[Batch],
    accumulate: int,
    path: str | None = None,
    **how: Any,
) -> tuple[dict[str, Any], Any]:
    """Train on this rank's batches; return its shards, and the counts of the guard if there is one."""
    ranks = int(os.environ["WORLD_SIZE"])
    strategy: Any = DDPStrategy(process_group_backend="gloo")
    if isinstance(module, Sharded):
        strategy = ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1)
    else:
        how["gradient_clip_val"] = 0.5
    trainer = Trainer(
        devices=ranks,
        strategy=strategy,
        plugins=plugin,
        accumulate_grad_batches=accumulate,
        use_distributed_sampler=False,
        **{"max_epochs": 1} | quiet.LIGHTNING | how,
    )
    torch.manual_seed(3)
    trainer.fit(module, DataLoader(PerRank(data), batch_size=None), ckpt_path=path)  # type: ignore[arg-type]
    optimizer = trainer.optimizers[0].state_dict()
    for held in optimizer["state"].values():
        held.update((name, local_tensor(value).clone()) for name, value in held.items())
    found = {
        "model": {k: local_tensor(v).clone() for k, v in module.state_dict().items()},
        "optimizer": optimizer,
        "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
        "dtypes": sorted(map(str, module.dtypes)),
    }
    guard = getattr(plugin, "guard", None)
    return found, None if guard is None else guard.summary()


def main(folder: Path, how: str) -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    path, sharded, results = folder / "checkpoint", how == "fsdp", dict[str, Any]()
    if how == "resume":
        results["resumed"] = train(CASES["healthy"], path=str(path))
    else:
        results = {
            f"{name} {accumulate}": train(case, accumulate, sharded=sharded)
            for accumulate in (1, 4)
            for name, case in CASES.items()
        }
    if sharded:
        for who in ("stock", "guarded"):
            counts = StepCounts()
            train((who, "none"), callbacks=[Counted(counts)])
            results[f"counts {who}"] = counts.steps
        try:
            train(("strict", "none"))
        except UsageError as error:
            results["strict"] = str(error)
    torch.save(results, folder / f"{how}-{os.environ['RANK']}.pt")
    if sharded:
        train(CASES["healthy"], callbacks=[SaveAfter(SAVED, path), Killed()])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
