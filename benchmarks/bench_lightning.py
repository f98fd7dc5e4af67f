"""Compare a Trainer with GuardPrecision to the same Trainer with Lightning's own FP16.

Fits of a few batches take turns: stock, guarded, and stock a second time, whose difference from the first is
noise. A callback measures each batch from start to end, in wall time and in processor time of this process;
the first batches of a fit are left out. Target for the median: at most 1.03.

``python -m benchmarks.bench_lightning [--rounds N] [--batches N]``
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader

from benchmarks.bench_guard import GPT2Like, next_token
from benchmarks.table import print_table
from halfguard.integrations.lightning import GuardPrecision

SCALE = 1024.0
WARM_UP = 2  # batches of a fit that are not measured


class Language(LightningModule):
    """A small language model of the usual shape."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Tensor) -> Tensor:
        return next_token(self.model, batch)

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), lr=1e-4)


class Meter(Callback):
    """Measures every batch in wall time and processor time."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self._start = time.perf_counter(), time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        self.wall.append(time.perf_counter() - self._start[0])
        self.processor.append(time.process_time() - self._start[1])


def stock(_: str) -> MixedPrecision:
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=SCALE))


def guarded(folder: str) -> GuardPrecision:
    settings = {"scale": {"init": SCALE}, "skip": {"on_nonfinite": "retry_fp32"}}
    return GuardPrecision(settings, run_dir=folder)


def fit(module: LightningModule, plugin: Any, data: list[Tensor]) -> Meter:
    meter = Meter()
    trainer = Trainer(
        plugins=plugin,
        accelerator="cpu",
        max_epochs=1,
        gradient_clip_val=1.0,
        callbacks=[meter],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(data, batch_size=None))  # type: ignore[arg-type]
    return meter


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=16, help="fits of each contestant")
    parser.add_argument("--batches", type=int, default=6, help="measured batches of a fit")
    return parser


def main() -> None:
    chosen = make_parser().parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    model = GPT2Like(vocabulary=8192, width=192, length=64)
    data = [torch.randint(0, 8192, (4, 65)) for _ in range(WARM_UP + chosen.batches)]
    makers: dict[str, Callable[[str], Any]] = {
        "stock": stock,
        "guarded": guarded,
        "stock again": stock,
    }
    wall: dict[str, list[float]] = {who: [] for who in makers}
    processor: dict[str, list[float]] = {who: [] for who in makers}
    for _ in range(chosen.rounds):
        for who, make in makers.items():
            with tempfile.TemporaryDirectory() as folder:
                meter = fit(Language(model), make(folder), data)
            wall[who].append(median(meter.wall[WARM_UP:]))
            processor[who].append(median(meter.processor[WARM_UP:]))
    size = sum(p.numel() for p in model.parameters())
    print(f"\n== Lightning Trainer, {size:,} parameters, {chosen.batches} batches per fit")
    print_table("wall time of a batch", wall, against="stock")
    print_table("processor time of a batch", processor, against="stock")


if __name__ == "__main__":
    main()
