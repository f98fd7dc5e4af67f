"""Train ten times with Lightning's Trainer and CSVLogger; the seed is a hyperparameter of the module."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.comparison.writers.training import (
    PRECISIONS,
    SEEDS,
    Numbers,
    data,
    folder,
    make_model,
    report,
)
from tests.support import quiet


class Regression(lightning.LightningModule):
    def __init__(self, seed: int, precision: str) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model, self.in_fp16 = make_model(seed), precision == "fp16"

    def loss(self, batch: Any) -> Tensor:
        # Lightning replaces "16-mixed" by bf16 on a CPU, so the module enters autocast itself.
        with torch.autocast("cpu", torch.float16, enabled=self.in_fp16):
            return nn.functional.mse_loss(self.model(batch[0]).float(), batch[1])

    def training_step(self, batch: Any) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True)
        return loss

    def validation_step(self, batch: Any) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(precision: str, seed: int) -> float:
    lightning.seed_everything(seed, verbose=False)
    x, y = data()
    logger = CSVLogger(folder() / precision, name="csv")
    how = quiet.LIGHTNING | {"max_epochs": 3, "logger": logger, "log_every_n_steps": 1}
    trainer = lightning.Trainer(**how)
    trainer.fit(
        Regression(seed, precision),
        DataLoader(TensorDataset(x[:200], y[:200]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(x[200:], y[200:]), batch_size=56),
    )
    return float(trainer.callback_metrics["val_loss"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    numbers: Numbers = {p: {seed: fit(p, seed) for seed in SEEDS} for p in PRECISIONS}
    report(numbers)
