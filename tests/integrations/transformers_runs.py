"""Small runs of transformers' Trainer: stock, guarded, and in FP32. FP16 really runs on the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from halfguard.integrations.transformers import GuardMixin
from tests.support import quiet

INIT_SCALE = 1024.0  # small enough that healthy runs see no overflow
Sample = dict[str, Tensor]


class Classifier(nn.Module):
    """A model with BatchNorm; with ``overflow`` every product of it is infinite in half."""

    def __init__(self, overflow: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.overflow = overflow
        self.dtypes: set[torch.dtype] = set()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.first(x)
        self.dtypes.add(hidden.dtype)
        if self.overflow:
            hidden = hidden * 2.0**30 / 2.0**30
        logits = self.last(torch.relu(self.norm(hidden)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class HalfOnCpu:
    """Lets Accelerate lower a model on a CPU, which it leaves out, with torch's scaler."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        self.accelerator: Any
        if getattr(self.args, "fsdp_plugin_args", None) is not None:  # since transformers 5
            from tests.integrations.accelerate_runs import shard_on_cpu

            plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            shard_on_cpu(self.accelerator, plugin)
            self.is_fsdp_enabled = True
        if self.accelerator.mixed_precision == "fp16":
            self.accelerator.native_amp = True
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=INIT_SCALE)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)

    train_dataset: Any
    args: Any


class StockTrainer(HalfOnCpu, Trainer):
    pass


class Guarded(GuardMixin, HalfOnCpu, Trainer):
    pass


class Rates(TrainerCallback):
    """Keeps the learning rate after each step."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.rates.append(kwargs["lr_scheduler"].get_last_lr()[0])


def samples(batches: int, nan_batch: int | None = None, without: int | None = None) -> list[Sample]:
    """Return four samples for each batch; those of ``nan_batch`` hold a NaN."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for index in range(batches * 4):
        x, labels = torch.randn(8, generator=generator), torch.tensor(index % 4)
        if nan_batch is not None and index // 4 == nan_batch:
            x[0] = torch.nan
        if index // 4 != without:
            found.append({"x": x, "labels": labels})
    return found


def arguments(folder: Path, **changed: Any) -> TrainingArguments:
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # transformers 4 leaves it to the next run
    settings = quiet.transformers(folder) | {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 6,
        "fp16": True,
        "logging_steps": 1,
        "optim": "adamw_torch",
        "seed": 1,
    }
    return TrainingArguments(**settings | changed)


def make(
    folder: Path,
    data: list[Sample],
    *,
    guard: dict[str, Any] | None = None,
    overflow: bool = False,
    run_dir: Path | None = None,
    **changed: Any,
) -> Any:
    """Return a trainer with a fresh model; guarded if there is a configuration."""
    torch.manual_seed(0)
    model, args = Classifier(overflow), arguments(folder, **changed)
    if guard is None:
        return StockTrainer(model, args, train_dataset=data, callbacks=[Rates()])
    config = {"scale": {"init": INIT_SCALE}} | guard
    return Guarded(
        model, args, train_dataset=data, callbacks=[Rates()], guard=config, run_dir=run_dir
    )


def state(trainer: Any) -> dict[str, Any]:
    """Return model, optimizer, learning rates and the scale of a trainer."""
    (rates,) = [c.rates for c in trainer.callback_handler.callbacks if isinstance(c, Rates)]
    return {
        "model": {k: v.clone() for k, v in trainer.model.state_dict().items()},
        "optimizer": trainer.optimizer.state_dict()["state"],
        "rates": rates,
    }
