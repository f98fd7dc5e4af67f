"""Train ten times with transformers' Trainer; the seed is in the name of the output folder."""

from __future__ import annotations

import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

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


class Regression(nn.Module):
    def __init__(self, seed: int, precision: str) -> None:
        super().__init__()
        self.model, self.in_fp16 = make_model(seed), precision == "fp16"

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.float16, enabled=self.in_fp16):
            out = self.model(x).float()
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def collate(rows: list[Any]) -> dict[str, Tensor]:
    return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}


def fit(precision: str, seed: int) -> float:
    x, y = data()
    arguments = TrainingArguments(
        **quiet.transformers(folder() / f"{precision}-seed{seed}") | {"save_strategy": "steps"},
        max_steps=30,
        learning_rate=0.01,
        per_device_train_batch_size=32,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=10,
        save_steps=15,
        seed=seed,
    )
    trainer = Trainer(
        Regression(seed, precision),
        arguments,
        data_collator=collate,
        train_dataset=TensorDataset(x[:200], y[:200]),
        eval_dataset=TensorDataset(x[200:], y[200:]),
    )
    trainer.train()
    evaluations = [row for row in trainer.state.log_history if "eval_loss" in row]
    return float(evaluations[-1]["eval_loss"])


if __name__ == "__main__":
    logging.set_verbosity_error()
    numbers: Numbers = {p: {seed: fit(p, seed) for seed in SEEDS} for p in PRECISIONS}
    report(numbers)
