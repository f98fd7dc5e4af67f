"""transformers: a Trainer makes an Accelerator from its TrainingArguments, and inherits what that does."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from halfguard.diagnosis.model.effective import asked_for
from halfguard.diagnosis.model.frameworks.accelerate import placed, prepared
from halfguard.diagnosis.model.frameworks.conversions import conversion, difference
from halfguard.diagnosis.model.frameworks.inputs import Given, is_a, moved
from halfguard.diagnosis.model.measured_precision import Ran
from halfguard.diagnosis.model.subject import Advice, Subject


def recognise(trainer: object) -> bool:
    """Whether it is a Trainer of transformers, or the arguments for one."""
    return _is_trainer(trainer) or is_a(trainer, "TrainingArguments", "transformers")


def subject(trainer: Any, given: Given) -> Subject:
    """The setup of a model under a Trainer, or under arguments that a Trainer will be given."""
    if _is_trainer(trainer):
        return _under_trainer(trainer, given)
    return _under_arguments(trainer, given)


def _is_trainer(trainer: object) -> bool:
    return is_a(trainer, "Trainer", "transformers")


def _under_trainer(trainer: Any, given: Given) -> Subject:
    model = trainer.model

    def step() -> Any:
        model.train()
        inputs = trainer._prepare_inputs(given.copied_batch)
        with prepared(trainer.accelerator, model), trainer.compute_loss_context_manager():
            if given.loss is not None:
                return given.loss(model, inputs)
            return trainer.compute_loss(model, dict(inputs))

    own = (trainer.optimizer,) if trainer.optimizer is not None else ()
    scaler = given.scaler or trainer.accelerator.scaler
    return _subject(trainer.args, given, model, given.optimizers or own, scaler, step)


def _under_arguments(arguments: Any, given: Given) -> Subject:
    model, device = given.needed_model("TrainingArguments"), arguments.device

    def step() -> Any:
        model.train()
        with _accelerator(arguments) as accelerator, prepared(accelerator, model):
            return given.call(model, moved(given.copied_batch, device))

    with _accelerator(arguments) as accelerator:
        scaler = given.scaler or accelerator.scaler
    return _subject(arguments, given, model, given.optimizers, scaler, step)


@contextmanager
def _accelerator(arguments: Any) -> Iterator[Any]:
    """The Accelerator that a Trainer would make; Accelerate's global state is as before afterwards."""
    accelerate, states = (importlib.import_module(n) for n in ("accelerate", "accelerate.state"))
    shared = [kind._shared_state for kind in (states.AcceleratorState, states.GradientState)]
    before = [dict(state) for state in shared]
    shared[0].clear()  # an Accelerator of another precision would be in the way
    try:
        yield accelerate.Accelerator(mixed_precision=arguments.mixed_precision)
    finally:
        for state, values in zip(shared, before, strict=True):
            state.clear()
            state.update(values)


def _subject(
    arguments: Any, given: Given, model: Any, optimizers: Any, scaler: Any, step: Any
) -> Subject:
    asked = arguments.mixed_precision if given.precision is None else given.precision
    return Subject(
        framework="transformers",
        model=model,
        optimizers=optimizers,
        scaler=scaler,
        asked=asked_for(asked),
        step=step if given.batch is not None else None,
        as_trained=partial(placed, model, arguments.device),
        advise=partial(_advise, arguments.device.type),
        settings=arguments,
        checkpoint=given.checkpoint,
    )


def _advise(device: str, asked: str | None, ran: Ran) -> Advice:
    silent = device == "cpu" and asked == "fp16-mixed" and ran.name == "fp32"
    word = {"fp32": "fp16=False, bf16=False", "fp16-mixed": "fp16=True"}.get(
        asked or "", "bf16=True"
    )
    return Advice(
        why="On a CPU, the Trainer's Accelerator runs fp16=True as FP32 and says nothing."
        if silent
        else difference(asked, ran),
        precision=conversion(asked, ran) or f"TrainingArguments({'bf16=True' if silent else word})",
        scaler="TrainingArguments(fp16=True)  # with model.float()",
    )
