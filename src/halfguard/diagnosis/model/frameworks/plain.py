"""A plain training loop: its precision is the autocast that the user wrote around the forward pass.

``doctor`` runs the forward pass in the autocast state of its caller, so call it where the loop calls the
forward pass. A loss function that enters autocast itself works anywhere. A ``halfguard.Guard`` has its own
autocast, and everything else.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from halfguard.diagnosis.model.effective import resolve_precision
from halfguard.diagnosis.model.frameworks.inputs import (
    DoctorInputs,
    autocast_line,
    conversion_line,
    explain_difference,
)
from halfguard.diagnosis.model.measured_precision import MeasuredPrecision
from halfguard.diagnosis.model.training_setup import Advice, TrainingSetup
from halfguard.guard.guard import Guard
from halfguard.precision.modes import autocast
from halfguard.precision_names import Precision

_OTHER_AUTOCAST = "(If your loop runs under another autocast, call doctor() inside it.)"


def read_setup(inputs: DoctorInputs) -> TrainingSetup:
    """Return the setup of a plain loop."""
    model = inputs.model
    found = TrainingSetup(
        model=model,
        optimizers=inputs.optimizers,
        scaler=inputs.scaler,
        asked=resolve_precision(inputs.precision),
        run_forward=None
        if model is None or inputs.batch is None
        else lambda: inputs.run_forward(model, inputs.copied_batch),
        checkpoint=inputs.checkpoint,
    )
    return replace(found, advise=partial(_advise, found.device_type))


def read_guard(guard: Guard, inputs: DoctorInputs) -> TrainingSetup:
    """Return the setup of a guard, which contains everything except the loss and a batch."""
    return in_precision(
        DoctorInputs(
            model=guard.model,
            optimizers=tuple(guard.optimizers),
            scaler=guard.scaler,
            loss=inputs.loss,
            batch=inputs.batch,
            checkpoint=inputs.checkpoint,
        ),
        guard.config.precision,
    )


def in_precision(inputs: DoctorInputs, precision: Precision | str) -> TrainingSetup:
    """Return a setup whose forward pass runs under the autocast of a halfguard precision."""
    wanted = Precision(precision)
    found = replace(read_setup(inputs), asked=str(wanted))
    if found.run_forward is None:
        return found
    run, device_type = found.run_forward, found.device_type

    def run_forward() -> Any:
        with autocast(wanted, device_type):
            return run()

    return replace(found, run_forward=run_forward)


def _advise(device: str, asked: str | None, measured: MeasuredPrecision) -> Advice:
    weights, block = conversion_line(asked, measured), autocast_line(asked, measured, device)
    why = explain_difference(asked, measured)
    return Advice(
        why=f"{why} {_OTHER_AUTOCAST}" if block else why,
        precision="\n".join(line for line in (weights, block) if line),
        scaler=f'scaler = torch.amp.GradScaler("{device}")',
    )
