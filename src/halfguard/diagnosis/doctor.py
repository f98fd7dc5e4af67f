"""``doctor``: find out what a model and its training setup will do, before training starts.

One forward pass is run and observed, with the model in its training state. Where gradients may be lost in
FP16, they are measured by two backward passes. Then every check looks at the setup; some repeat the forward
pass in another way, to compare. Nothing is updated: weights, gradients, attributes, the batch and random
state are restored.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from halfguard.diagnosis.model import checks as folder
from halfguard.diagnosis.model.effective import add_observations
from halfguard.diagnosis.model.forward import observe_forward
from halfguard.diagnosis.model.frameworks import accelerate, lightning, plain, transformers
from halfguard.diagnosis.model.frameworks.inputs import (
    DoctorInputs,
    check_checkpoint,
    check_model,
    check_optimizers,
)
from halfguard.diagnosis.model.gradients import add_gradients
from halfguard.diagnosis.model.restore_model import reshard, restore_afterwards
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.errors import UsageError
from halfguard.guard.guard import Guard
from halfguard.guard.stepping.scaler import GradScaler
from halfguard.precision.declared_dtypes import rollout_of
from halfguard.precision_names import Precision
from halfguard.records.diagnosis import Diagnosis
from halfguard.records.finding import Finding
from halfguard.workload import Workload

Check = Callable[[TrainingSetup], Iterator[Finding]]


def doctor(
    model: nn.Module | None = None,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    scaler: torch.amp.GradScaler | None = None,
    precision: str | int | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    batch: Any = None,
    trainer: Any = None,
    checkpoint: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    rollout: Any = None,
) -> Diagnosis:
    """Check a training setup. All arguments are optional, and each one enables more checks.

    ``precision`` is the requested precision, with halfguard's or the framework's name for it. With a
    ``batch``, one forward pass runs as in training and its precision is measured: ``loss(model, batch)``, or
    ``model(batch)`` without a ``loss``. In your own training loop, call this function where you call the
    forward pass, under the same autocast. Otherwise, pass the object that trains the model as ``trainer``: a
    Lightning Trainer, a Trainer or TrainingArguments of transformers, an Accelerator, or a
    ``halfguard.Guard``. ``checkpoint`` is the checkpoint to resume from: a mapping, a file or a folder.
    ``rollout`` is the copy of the model that generates text: a module, or vLLM's ``LLM``.
    """
    inputs = DoctorInputs(
        model=check_model(model),
        optimizers=check_optimizers(optimizer),
        scaler=scaler,
        precision=precision,
        loss=loss,
        batch=batch,
        checkpoint=check_checkpoint(checkpoint),
    )
    generating = rollout_of(trainer) if rollout is None else rollout
    return examine(replace(_read_setup(trainer, inputs), rollout=generating))


def doctor_workload(workload: Workload, *, precision: Precision | str) -> Diagnosis:
    """Examine a workload as a ``halfguard.Guard`` would train it in ``precision``, with its scaler."""
    wanted, fresh = Precision(precision), workload.fresh()
    fresh.store_weights_as(wanted)
    inputs = DoctorInputs(
        model=fresh.model,
        optimizers=(fresh.optimizer,),
        scaler=GradScaler(fresh.device.type) if wanted.needs_loss_scale else None,
        loss=fresh.loss,
        batch=next(fresh.take(1)),
    )
    return examine(plain.in_precision(inputs, wanted))


def examine(setup: TrainingSetup) -> Diagnosis:
    """Run the forward pass, if there is a batch for it, and every check."""
    if setup.model is not None and setup.run_forward is not None:
        _raise_if_without_weights(setup.model)
    restored = nullcontext() if setup.model is None else restore_afterwards(setup.model)
    with restored, setup.as_trained():
        if setup.model is not None and setup.run_forward is not None:
            with restore_afterwards(setup.model):  # checks may repeat the pass from the same state
                observed = observe_forward(setup.model, setup.run_forward, setup.device_type)
                reshard(setup.model)
            setup = add_gradients(add_observations(setup, observed))
        findings = tuple(found for check in all_checks() for found in check(setup))
    return Diagnosis(framework=setup.framework, effective=setup.effective, findings=findings)


def _raise_if_without_weights(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        lazy = isinstance(parameter, UninitializedParameter)
        if lazy or parameter.is_meta:
            raise UsageError(
                f"{name} has no values yet because it is {'lazy' if lazy else 'on the meta device'}.",
                cure="Run one batch through the model first."
                if lazy
                else 'Move the model to a device first: model.to_empty(device="cpu"). Then load its weights.',
            )


@functools.cache
def all_checks() -> tuple[Check, ...]:
    """Return every function ``check_CODE`` of the modules in ``checks``, sorted by code."""
    names = [f"{folder.__name__}.{module.name}" for module in pkgutil.iter_modules(folder.__path__)]
    found = {
        name: check
        for module in map(importlib.import_module, names)
        for name, check in vars(module).items()
        if name.startswith(("check_hd", "check_hg"))
    }
    return tuple(found[name] for name in sorted(found))


def _read_setup(trainer: Any, inputs: DoctorInputs) -> TrainingSetup:
    if trainer is None:
        return plain.read_setup(inputs)
    if isinstance(trainer, Guard):
        return plain.read_guard(trainer, inputs)
    if lightning.recognise(trainer):
        return lightning.read_setup(trainer, inputs)
    if transformers.recognise(trainer):
        return transformers.read_setup(trainer, inputs)
    if accelerate.recognise(trainer):
        return accelerate.read_setup(trainer, inputs)
    raise UsageError(
        f"doctor(trainer=...) received a {type(trainer).__name__}, which is not supported.",
        cure=(
            "Pass a Lightning Trainer, a Trainer or TrainingArguments of transformers, an Accelerator or a "
            "halfguard.Guard. For your own training loop, omit trainer."
        ),
    )
