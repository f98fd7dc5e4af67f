"""transformers: a Trainer makes an Accelerator from its TrainingArguments, and behaves like it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from halfguard.diagnosis.model.effective import resolve_precision
from halfguard.diagnosis.model.frameworks.accelerate import move_model, prepare_forward
from halfguard.diagnosis.model.frameworks.inputs import (
    DoctorInputs,
    check_optimizers,
    conversion_line,
    explain_difference,
    is_a,
    move_batch,
)
from halfguard.diagnosis.model.measured_precision import MeasuredPrecision
from halfguard.diagnosis.model.training_setup import Advice, TrainingSetup


def recognise(trainer: object) -> bool:
    """Return whether it is a Trainer of transformers, or its TrainingArguments."""
    return _is_trainer(trainer) or is_a(trainer, "TrainingArguments", "transformers")


def read_setup(trainer: Any, inputs: DoctorInputs) -> TrainingSetup:
    """Return the setup of a Trainer, or of TrainingArguments before there is a Trainer."""
    if _is_trainer(trainer):
        return _read_trainer(trainer, inputs)
    return _read_arguments(trainer, inputs)


def _is_trainer(trainer: object) -> bool:
    return is_a(trainer, "Trainer", "transformers")


def _read_trainer(trainer: Any, inputs: DoctorInputs) -> TrainingSetup:
    model = trainer.model

    def run_forward() -> Any:
        model.train()
        batch = trainer._prepare_inputs(inputs.copied_batch)
        with prepare_forward(trainer.accelerator, model), trainer.compute_loss_context_manager():
            if inputs.loss is not None:
                return inputs.loss(model, batch)
            return trainer.compute_loss(model, dict(batch))

    own = check_optimizers(trainer.optimizer)
    scaler = inputs.scaler or trainer.accelerator.scaler
    return _make_setup(trainer.args, inputs, model, inputs.optimizers or own, scaler, run_forward)


def _read_arguments(arguments: Any, inputs: DoctorInputs) -> TrainingSetup:
    model, device = inputs.require_model("TrainingArguments"), arguments.device

    def run_forward() -> Any:
        model.train()
        with _accelerator(arguments) as accelerator, prepare_forward(accelerator, model):
            return inputs.run_forward(model, move_batch(inputs.copied_batch, device))

    with _accelerator(arguments) as accelerator:
        scaler = inputs.scaler or accelerator.scaler
    return _make_setup(arguments, inputs, model, inputs.optimizers, scaler, run_forward)


@contextmanager
def _accelerator(arguments: Any) -> Iterator[Any]:
    """Yield the Accelerator that a Trainer would make, then restore Accelerate's global state."""
    accelerate, states = (importlib.import_module(n) for n in ("accelerate", "accelerate.state"))
    shared = [kind._shared_state for kind in (states.AcceleratorState, states.GradientState)]
    before = [dict(state) for state in shared]
    shared[0].clear()  # an existing Accelerator of another precision would raise
    try:
        yield accelerate.Accelerator(mixed_precision=arguments.mixed_precision)
    finally:
        for state, values in zip(shared, before, strict=True):
            state.clear()
            state.update(values)


def _make_setup(
    arguments: Any, inputs: DoctorInputs, model: Any, optimizers: Any, scaler: Any, run_forward: Any
) -> TrainingSetup:
    asked = arguments.mixed_precision if inputs.precision is None else inputs.precision
    return TrainingSetup(
        framework="transformers",
        model=model,
        optimizers=optimizers,
        scaler=scaler,
        asked=resolve_precision(asked),
        run_forward=run_forward if inputs.batch is not None else None,
        as_trained=partial(move_model, model, arguments.device),
        advise=partial(_advise, arguments.device.type),
        training_arguments=arguments,
        checkpoint=inputs.checkpoint,
    )


def _advise(device: str, asked: str | None, measured: MeasuredPrecision) -> Advice:
    runs_fp32 = device == "cpu" and asked == "fp16-mixed" and measured.name == "fp32"
    options = {"fp32": "fp16=False, bf16=False", "fp16-mixed": "fp16=True"}
    option = "bf16=True" if runs_fp32 else options.get(asked or "", "bf16=True")
    return Advice(
        why="On a CPU, the Trainer's Accelerator runs fp16=True as FP32 without a warning."
        if runs_fp32
        else explain_difference(asked, measured),
        precision=conversion_line(asked, measured) or f"TrainingArguments({option})",
        scaler="TrainingArguments(fp16=True)  # with model.float()",
    )
