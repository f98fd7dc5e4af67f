"""Train with DDP on two CPU ranks.

``torchrun --nproc-per-node=2 -m tests.integrations.lightning_ranks WHO FAULT ACCUMULATE OUT``, where WHO is
stock, guarded or fp32, and FAULT is healthy, nan, without or overflow.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from tests.integrations.lightning_runs import (
    RETRY,
    Batch,
    Classifier,
    guard_plugin,
    overflow_everywhere,
    state,
    stock_plugin,
)
from tests.support import quiet


class PerRank:
    """Batches of one rank: another half of the data on each."""

    def __init__(self, data: list[Batch]) -> None:
        self._data = data

    def __getitem__(self, index: int) -> Batch:
        return self._data[index]

    def __len__(self) -> int:
        return len(self._data)


def data_of(rank: int, fault: str) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    ranks = int(os.environ["WORLD_SIZE"])
    inputs = [torch.randn(8, 12, generator=generator) for _ in range(12 * ranks)]
    labels = [x[:, :4].argmax(1) for x in inputs]
    if fault == "overflow":
        inputs = [overflow_everywhere(0, x) for x in inputs]
    mine = list(zip(inputs, labels, strict=True))[rank::ranks]
    if fault == "nan" and rank == 1:  # on one rank only
        mine[4] = (mine[4][0] * torch.nan, mine[4][1])
    return mine[:4] + mine[8:] if fault == "without" else mine


def main(who: str, fault: str, accumulate: int, out: Path) -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    plugins: dict[str, Any] = {"stock": stock_plugin, "guarded": lambda: guard_plugin(RETRY)}
    module = Classifier(dropout=0)
    trainer = Trainer(
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        plugins=plugins[who]() if who in plugins else None,
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=0.5,
        use_distributed_sampler=False,
        **quiet.LIGHTNING,
    )
    torch.manual_seed(3)
    rank = trainer.global_rank
    trainer.fit(module, DataLoader(PerRank(data_of(rank, fault)), batch_size=None))  # type: ignore[arg-type]
    saved = state(trainer) | {"dtypes": sorted(map(str, module.dtypes))}
    if not isinstance(trainer.precision_plugin, MixedPrecision) or who == "stock":
        saved["summary"] = None
    else:
        summary = trainer.precision_plugin.guard.summary()  # type: ignore[attr-defined]
        saved["summary"] = [summary.applied, summary.retried, sum(summary.skipped.values())]
    torch.save(saved, out.with_name(f"{out.name}.{rank}"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
