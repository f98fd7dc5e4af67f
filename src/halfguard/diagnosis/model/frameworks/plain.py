"""A loop of one's own: the precision is whatever autocast its author wrote around the forward pass.

``doctor`` runs the forward pass in the autocast state of its caller. So it is called where the loop calls
its forward pass; a loss function that enters autocast by itself needs nothing. A ``halfguard.Guard`` brings
its own autocast, and everything else.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from halfguard.diagnosis.model.effective import asked_for
from halfguard.diagnosis.model.frameworks.conversions import conversion, difference, region
from halfguard.diagnosis.model.frameworks.inputs import Given
from halfguard.diagnosis.model.measured_precision import Ran
from halfguard.diagnosis.model.subject import Advice, Subject
from halfguard.guard import Guard
from halfguard.precision.modes import Precision, autocast

_ELSEWHERE = "(If your loop has another autocast around it, call doctor() inside of that.)"


def subject(given: Given) -> Subject:
    """The setup of a plain loop."""
    model = given.model
    found = Subject(
        model=model,
        optimizers=given.optimizers,
        scaler=given.scaler,
        asked=asked_for(given.precision),
        step=None
        if model is None or given.batch is None
        else lambda: given.call(model, given.copied_batch),
        checkpoint=given.checkpoint,
    )
    return replace(found, advise=partial(_advise, found.device_type))


def guarded(guard: Guard, given: Given) -> Subject:
    """The setup of a guard, which holds everything but the loss and a batch."""
    return in_precision(
        Given(
            model=guard.model,
            optimizers=tuple(guard.optimizers),
            scaler=guard.scaler,
            loss=given.loss,
            batch=given.batch,
            checkpoint=given.checkpoint,
        ),
        guard.config.precision,
    )


def in_precision(given: Given, precision: Precision | str) -> Subject:
    """A setup whose forward pass runs under the autocast of one of our precisions."""
    wanted = Precision(precision)
    found = replace(subject(given), asked=str(wanted))
    if found.step is None:
        return found
    run, device_type = found.step, found.device_type

    def step() -> Any:
        with autocast(wanted, device_type):
            return run()

    return replace(found, step=step)


def _advise(device: str, asked: str | None, ran: Ran) -> Advice:
    if asked is None:
        return Advice(scaler=f'scaler = torch.amp.GradScaler("{device}")')
    weights, block = conversion(asked, ran), region(asked, ran, device)
    return Advice(
        why=f"{difference(asked, ran)} {_ELSEWHERE}" if block else difference(asked, ran),
        precision="\n".join(line for line in (weights, block) if line),
        scaler=f'scaler = torch.amp.GradScaler("{device}")',
    )
