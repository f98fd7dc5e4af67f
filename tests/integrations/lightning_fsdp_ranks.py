"""Train with Lightning's ModelParallelStrategy and FSDP2 on CPU ranks, every case in one launch.

``torchrun --nproc-per-node=2 -m tests.integrations.lightning_fsdp_ranks FOLDER [resume]``. The last case is
killed in the middle of a step after a checkpoint; a second launch with ``resume`` continues it.
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
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader

from halfguard.errors import UsageError
from halfguard.numerics.tensor_rows import local_tensor
from tests.integrations.lightning_ranks import PerRank, data_of
from tests.integrations.lightning_runs import RETRY, Batch, Classifier, guard_plugin, stock_plugin
from tests.integrations.step_counts import StepCounts
from tests.support import quiet

SAVED = 5
CASES = [
    ("stock", "healthy"),
    ("guarded", "healthy"),
    ("fp32", "overflow"),
    ("guarded", "overflow"),
    ("stock", "without"),
    ("guarded", "nan"),
]


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


def train(who: str, fault: str, accumulate: int, **how: Any) -> dict[str, Any]:
    path = how.pop("ckpt_path", None)
    plugins: dict[str, Any] = {
        "stock": stock_plugin,
        "guarded": lambda: guard_plugin(RETRY),
        "strict": lambda: guard_plugin({"strict": True}),
    }
    module = Sharded(half=who != "fp32", reduce=torch.float16 if who == "strict" else torch.float32)
    data = data_of(int(os.environ["RANK"]), fault)
    if path is not None:  # Lightning counts the batches, and does not go on in the data
        data = data[SAVED:] + data[:SAVED]
    plugin = plugins[who]() if who in plugins else None
    found, summary = fit(module, plugin, data, accumulate, path=path, **how)
    if who == "guarded":
        found["counts"] = [summary.applied, summary.retried, sum(summary.skipped.values())]
    return found


def fit(
    module: Sharded,
    plugin: Any,
    data: list[Batch],
    accumulate: int,
    path: str | None = None,
    **how: Any,
) -> tuple[dict[str, Any], Any]:
    """Train on this rank's batches; return its shards, and the counts of the guard if there is one."""
    ranks = int(os.environ["WORLD_SIZE"])
    trainer = Trainer(
        devices=ranks,
        strategy=ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1),
        plugins=plugin,
        accumulate_grad_batches=accumulate,
        use_distributed_sampler=False,
        **{"max_epochs": 1} | quiet.LIGHTNING | how,
    )
    torch.manual_seed(3)
    trainer.fit(module, DataLoader(PerRank(data), batch_size=None), ckpt_path=path)  # type: ignore[arg-type]
    moments = trainer.optimizers[0].state_dict()["state"]
    found = {
        "model": {k: local_tensor(v).clone() for k, v in module.state_dict().items()},
        "optimizer": {
            number: {name: local_tensor(value).clone() for name, value in held.items()}
            for number, held in moments.items()
        },
        "schedule": trainer.lr_scheduler_configs[0].scheduler.state_dict()["last_epoch"],
        "dtypes": sorted(map(str, module.dtypes)),
    }
    guard = getattr(plugin, "guard", None)
    return found, None if guard is None else guard.summary()


def main(folder: Path, how: str = "") -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    path = str(folder / "checkpoint")
    if how == "resume":
        resumed = train("guarded", "healthy", 1, ckpt_path=path)
        torch.save(resumed, folder / f"resumed-{os.environ['RANK']}.pt")
        return
    results = {
        f"{who} {fault} {accumulate}": train(who, fault, accumulate)
        for accumulate in (1, 4)
        for who, fault in CASES
    }
    for who in ("stock", "guarded"):
        counts = StepCounts()
        train(who, "healthy", 1, callbacks=[Counted(counts)])
        results[f"counts {who}"] = {"steps": counts.steps}
    try:
        train("strict", "healthy", 1)
    except UsageError as error:
        results["strict"] = {"error": str(error)}
    torch.save(results, folder / f"{os.environ['RANK']}.pt")
    train("guarded", "healthy", 1, callbacks=[SaveAfter(SAVED, Path(path)), Killed()])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
