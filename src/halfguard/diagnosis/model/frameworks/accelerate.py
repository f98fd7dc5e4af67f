"""Accelerate: ``prepare`` wraps the model's forward in autocast, if its Accelerator has native AMP.

On a CPU ``mixed_precision="fp16"`` leaves ``native_amp`` False and the scaler None (Accelerate 1.15): the
model runs in FP32 without a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn

from halfguard.diagnosis.model.effective import resolve_precision
from halfguard.diagnosis.model.frameworks.inputs import (
    DoctorInputs,
    conversion_line,
    explain_difference,
    is_a,
    move_batch,
    patch,
)
from halfguard.diagnosis.model.measured_precision import MeasuredPrecision
from halfguard.diagnosis.model.training_setup import Advice, TrainingSetup

_FP16_ON_CPU = (
    "On a CPU, Accelerate silently runs fp16 as FP32, without autocast and without a scaler."
)


def recognise(trainer: object) -> bool:
    """Return whether it is an Accelerator."""
    return is_a(trainer, "Accelerator", "accelerate")


def read_setup(accelerator: Any, inputs: DoctorInputs) -> TrainingSetup:
    """Return the setup of a loop that uses an Accelerator."""
    model = inputs.require_model("an Accelerator")

    def run_forward() -> Any:
        with prepare_forward(accelerator, model):
            return inputs.run_forward(model, move_batch(inputs.copied_batch, accelerator.device))

    asked = accelerator.mixed_precision if inputs.precision is None else inputs.precision
    return TrainingSetup(
        framework="Accelerate",
        model=model,
        optimizers=inputs.optimizers,
        scaler=inputs.scaler or accelerator.scaler,
        asked=resolve_precision(asked),
        run_forward=run_forward if inputs.batch is not None else None,
        as_trained=partial(move_model, model, accelerator.device),
        advise=partial(_advise, accelerator.device.type),
        checkpoint=inputs.checkpoint,
    )


@contextmanager
def move_model(model: nn.Module, device: Any) -> Iterator[None]:
    """Move the model to the device on which its framework trains it."""
    if any(parameter.device.type != device.type for parameter in model.parameters()):
        model.to(device)
    yield


@contextmanager
def prepare_forward(accelerator: Any, model: nn.Module) -> Iterator[None]:
    """Wrap the model's forward as ``accelerator.prepare`` does, unless it is prepared already."""
    forward = model.forward

    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with accelerator.autocast():
            return forward(*args, **kwargs)

    done = getattr(model, "_is_accelerate_prepared", False)
    with nullcontext() if done else patch(model, forward=under_autocast):
        yield


def _advise(device: str, asked: str | None, measured: MeasuredPrecision) -> Advice:
    runs_fp32 = device == "cpu" and asked == "fp16-mixed" and measured.name == "fp32"
    option = {"fp32": "no", "fp16-mixed": "fp16"}.get(asked or "", "bf16")
    return Advice(
        why=_FP16_ON_CPU if runs_fp32 else explain_difference(asked, measured),
        precision=conversion_line(asked, measured)
        or f'accelerator = Accelerator(mixed_precision="{"bf16" if runs_fp32 else option}")',
        scaler='accelerator = Accelerator(mixed_precision="fp16")  # with model.float()',
    )
