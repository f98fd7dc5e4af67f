"""Accelerate: ``prepare`` wraps the model's forward in autocast, if its Accelerator has native AMP.

On a CPU ``mixed_precision="fp16"`` leaves ``native_amp`` False and the scaler None (Accelerate 1.15): what
runs is FP32, and nothing says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn

from halfguard.diagnosis.model.effective import asked_for
from halfguard.diagnosis.model.frameworks.conversions import conversion, difference
from halfguard.diagnosis.model.frameworks.inputs import Given, is_a, moved, replaced
from halfguard.diagnosis.model.measured_precision import Ran
from halfguard.diagnosis.model.subject import Advice, Subject

_SILENT = "On a CPU, Accelerate runs fp16 as FP32 and says nothing: no autocast, no scaler."


def recognise(trainer: object) -> bool:
    """Whether it is an Accelerator."""
    return is_a(trainer, "Accelerator", "accelerate")


def subject(accelerator: Any, given: Given) -> Subject:
    """The setup of a loop that goes through an Accelerator."""
    model = given.needed_model("an Accelerator")

    def step() -> Any:
        with prepared(accelerator, model):
            return given.call(model, moved(given.copied_batch, accelerator.device))

    asked = accelerator.mixed_precision if given.precision is None else given.precision
    return Subject(
        framework="Accelerate",
        model=model,
        optimizers=given.optimizers,
        scaler=given.scaler or accelerator.scaler,
        asked=asked_for(asked),
        step=step if given.batch is not None else None,
        as_trained=partial(placed, model, accelerator.device),
        advise=partial(_advise, accelerator.device.type),
        checkpoint=given.checkpoint,
    )


@contextmanager
def placed(model: nn.Module, device: Any) -> Iterator[None]:
    """Put the model where its framework will put it."""
    if any(parameter.device.type != device.type for parameter in model.parameters()):
        model.to(device)
    yield


@contextmanager
def prepared(accelerator: Any, model: nn.Module) -> Iterator[None]:
    """Wrap the model's forward as ``accelerator.prepare`` will, unless it has done so already."""
    forward = model.forward

    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with accelerator.autocast():
            return forward(*args, **kwargs)

    done = getattr(model, "_is_accelerate_prepared", False)
    with nullcontext() if done else replaced(model, forward=under_autocast):
        yield


def _advise(device: str, asked: str | None, ran: Ran) -> Advice:
    silent = device == "cpu" and asked == "fp16-mixed" and ran.name == "fp32"
    word = {"fp32": "no", "fp16-mixed": "fp16"}.get(asked or "", "bf16")
    return Advice(
        why=_SILENT if silent else difference(asked, ran),
        precision=conversion(asked, ran)
        or f'accelerator = Accelerator(mixed_precision="{"bf16" if silent else word}")',
        scaler='accelerator = Accelerator(mixed_precision="fp16")  # with model.float()',
    )
