"""``doctor``: what a model and its training setup will really do, before an hour is lost on it.

One forward pass is run and watched, on the model as it is in training; then every check looks at the
setup. Nothing is updated: weights, gradients, attributes, the batch and random generators are as before.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from halfguard.diagnosis.model import checks as folder
from halfguard.diagnosis.model.arguments import (
    checked_checkpoint,
    checked_model,
    checked_optimizers,
)
from halfguard.diagnosis.model.effective import seen_in
from halfguard.diagnosis.model.forward import watch
from halfguard.diagnosis.model.frameworks import accelerate, lightning, plain, transformers
from halfguard.diagnosis.model.frameworks.inputs import Given
from halfguard.diagnosis.model.restore_model import kept, reshard
from halfguard.diagnosis.model.subject import Subject
from halfguard.errors import UsageError
from halfguard.guard import GradScaler, Guard
from halfguard.precision.modes import Precision
from halfguard.records.diagnosis import Diagnosis
from halfguard.records.finding import Finding
from halfguard.workload import Workload

Check = Callable[[Subject], Iterator[Finding]]


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
) -> Diagnosis:
    """Examine a training setup; give what is at hand, and the more the better.

    ``precision`` is what was asked for, in our words or the framework's. With a ``batch``, one forward
    pass is run as training runs it, ``loss(model, batch)``, and what it computes in is measured; without
    a ``loss`` the model is called with the batch. In a loop of your own, call this where the forward pass
    is called: under the same autocast. ``trainer`` is what trains the model otherwise: a Lightning
    Trainer, a Trainer or TrainingArguments of transformers, an Accelerator, or a ``halfguard.Guard``.
    ``checkpoint`` is what training is to be resumed from: a mapping, a file or a folder.
    """
    given = Given(
        model=checked_model(model),
        optimizers=checked_optimizers(optimizer),
        scaler=scaler,
        precision=precision,
        loss=loss,
        batch=batch,
        checkpoint=checked_checkpoint(checkpoint),
    )
    return examine(_subject(trainer, given))


def doctor_workload(workload: Workload, *, precision: Precision | str) -> Diagnosis:
    """Examine a workload as a ``halfguard.Guard`` would train it in ``precision``, with its scaler."""
    wanted, fresh = Precision(precision), workload.fresh()
    fresh.store_weights_as(wanted)
    given = Given(
        model=fresh.model,
        optimizers=(fresh.optimizer,),
        scaler=GradScaler(fresh.device.type) if wanted.needs_loss_scale else None,
        loss=fresh.loss,
        batch=next(fresh.take(1)),
    )
    return examine(plain.in_precision(given, wanted))


def examine(subject: Subject) -> Diagnosis:
    """Run the forward pass, if there is one to run, and every check."""
    if subject.model is not None and subject.step is not None:
        _refuse_without_weights(subject.model)
    with nullcontext() if subject.model is None else kept(subject.model), subject.as_trained():
        if subject.model is not None and subject.step is not None:
            seen = watch(subject.model, subject.step, subject.device_type)
            reshard(subject.model)
            subject = seen_in(subject, seen)
        findings = tuple(found for check in all_checks() for found in check(subject))
    return Diagnosis(framework=subject.framework, effective=subject.effective, findings=findings)


def _refuse_without_weights(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        lazy = isinstance(parameter, UninitializedParameter)
        if lazy or parameter.is_meta:
            raise UsageError(
                f"{name} has no numbers yet: it is {'lazy' if lazy else 'on the meta device'}.",
                cure="Run one batch through the model first."
                if lazy
                else 'Give the model a device first: model.to_empty(device="cpu"), then its weights.',
            )


@functools.cache
def all_checks() -> tuple[Check, ...]:
    """Every check, by code."""
    names = sorted(m.name for m in pkgutil.iter_modules(folder.__path__) if m.name[:2] == "hd")
    return tuple(importlib.import_module(f"{folder.__name__}.{name}").check for name in names)


def _subject(trainer: Any, given: Given) -> Subject:
    if trainer is None:
        return plain.subject(given)
    if isinstance(trainer, Guard):
        return plain.guarded(trainer, given)
    if lightning.recognise(trainer):
        return lightning.subject(trainer, given)
    if transformers.recognise(trainer):
        return transformers.subject(trainer, given)
    if accelerate.recognise(trainer):
        return accelerate.subject(trainer, given)
    raise UsageError(
        f"doctor(trainer=...) was given a {type(trainer).__name__}, which it does not know.",
        cure="Pass a Lightning Trainer, a Trainer or TrainingArguments of transformers, an Accelerator "
        "or a halfguard.Guard; for a loop of your own leave it out.",
    )
