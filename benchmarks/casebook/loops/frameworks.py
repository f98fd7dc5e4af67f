"""Loops of frameworks, in FP16 on a CPU: they would leave it out there, so they are given a scaler."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from benchmarks.casebook.loops.faults import Batch, LoopParts


def scaler_of(parts: LoopParts) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=parts.initial_scale)


class Lightning:
    """Lightning's Trainer with automatic optimization."""

    def __init__(self, parts: LoopParts) -> None:
        import lightning.pytorch as pl
        from lightning.pytorch.plugins.precision import MixedPrecision

        warnings.simplefilter("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = parts.model

            def training_step(self, batch: Batch) -> Tensor:
                return parts.loss(self.net, batch)

            def configure_optimizers(self) -> Any:
                schedule = {"scheduler": parts.scheduler, "interval": "step"}
                return {"optimizer": parts.optimizer, "lr_scheduler": schedule}

        self.parts, self.module, self.scaler = parts, Module(), scaler_of(parts)
        self.options: dict[str, Any] = {
            "accelerator": "cpu", "max_epochs": 1, "logger": False, "enable_checkpointing": False,
            "enable_progress_bar": False, "enable_model_summary": False, "barebones": False,
            "accumulate_grad_batches": parts.accumulate,
        }  # fmt: skip
        self.make = lambda: pl.Trainer(
            plugins=[MixedPrecision("16-mixed", "cpu", scaler=self.scaler)], **self.options
        )

    def train(self, batches: Sequence[Batch]) -> None:
        loader: DataLoader[Any] = DataLoader(list(batches), batch_size=None)  # type: ignore[arg-type]
        self.make().fit(self.module, loader)

    def loss_scale(self) -> float | None:
        return self.scaler.get_scale()


class Transformers:
    """transformers' Trainer."""

    def __init__(self, parts: LoopParts) -> None:
        from transformers import Trainer, TrainingArguments

        class OnCPU(Trainer):
            def create_accelerator_and_postprocess(self) -> None:
                super().create_accelerator_and_postprocess()
                self.accelerator.native_amp = True
                self.accelerator.scaler = scaler_of(parts)

            def _get_train_sampler(self, _dataset: Any = None) -> Any:
                return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

            def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
                return parts.loss(model, inputs["batch"])

        self.parts = parts
        arguments = TrainingArguments(
            tempfile.mkdtemp(), fp16=True, num_train_epochs=1, per_device_train_batch_size=1,
            gradient_accumulation_steps=parts.accumulate, max_grad_norm=0.0, report_to=[],
            save_strategy="no", disable_tqdm=True, use_cpu=True, remove_unused_columns=False,
            logging_strategy="no",
        )  # fmt: skip
        self.trainer = OnCPU(
            parts.model, arguments, train_dataset=[0], data_collator=lambda rows: {"batch": rows[0]},
            optimizers=(parts.optimizer, parts.scheduler),
        )  # fmt: skip

    def train(self, batches: Sequence[Batch]) -> None:
        self.trainer.train_dataset = list(batches)
        self.trainer.train()

    def loss_scale(self) -> float | None:
        return float(self.trainer.accelerator.scaler.get_scale())


class Accelerate:
    """The loop of Accelerate's documentation."""

    def __init__(self, parts: LoopParts) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        self.parts = parts
        self.accelerator = Accelerator(
            cpu=True, mixed_precision="fp16", gradient_accumulation_steps=parts.accumulate
        )
        self.accelerator.native_amp = True
        self.accelerator.scaler = scaler_of(parts)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(
            parts.model, parts.optimizer, parts.scheduler
        )

    def train(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            with self.accelerator.accumulate(self.model):
                with self.accelerator.autocast():
                    loss = self.parts.loss(self.model, batch)
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()

    def loss_scale(self) -> float | None:
        return float(self.accelerator.scaler.get_scale())
