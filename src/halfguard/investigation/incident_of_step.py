"""Keep the bad step of an unmodified script as an incident, so that ``halfguard replay`` can repeat it.

A script has no batch that it hands over. What is kept is what the model was called with: an ENTRY for the
replay calls ``model(*batch["args"], **batch["kwargs"])`` and computes the loss from that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from halfguard.dist.collectives import world_size
from halfguard.incident.capture import BadStep, IncidentWriter
from halfguard.investigation.passes import Event
from halfguard.journal.run_environment import collect_environment
from halfguard.precision_names import Precision
from halfguard.records.step import Action, Cause, StepRow
from halfguard.step.random_state import capture_random_state, portable_random_state

_MAX_BYTES = 2 * 2**30
_CAUSES = {
    "loss": Cause.FORWARD_OVERFLOW,
    "gradients": Cause.GRADIENT_OVERFLOW,
    "scale": Cause.GRADIENT_OVERFLOW,
}


@dataclass
class ModelCall:
    """The last call of the model, with the random state before it."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    random_state: Any = None

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...]) -> ModelCall:
        """Note a call, from a forward pre-hook of all modules, which is not told the keyword arguments."""
        kwargs: Any = {}
        frame = sys._getframe(1)
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_globals.get("__name__") == "torch.nn.modules.module":
                kwargs = frame.f_locals.get("kwargs", {})
                break
        return cls(model, args, dict(kwargs), portable_random_state(capture_random_state()))


def keep_incident(folder: str, call: ModelCall, event: Event, autocast: str) -> str:
    """Write the incident; return its path, or an empty string if that failed."""
    device = next((p.device.type for p in call.model.parameters()), "cpu")
    writer = IncidentWriter(
        Path(folder),
        keep=1,
        max_bytes=_MAX_BYTES,
        weights=True,
        environment=collect_environment(device),
        rank=int(os.environ.get("RANK", "0")),
        world_size=world_size(),
    )
    row = StepRow(
        step=event.step,
        action=Action.HALT,
        cause=_CAUSES.get(event.kind),
        loss=event.loss,
        grad_norm=float("nan"),
        scale=event.scale,
        evidence=f"A bad number was seen by halfguard why: {event.how}.",
    )
    about = 'batch["args"] and batch["kwargs"] are what the model was called with'
    batch = {"args": list(call.args), "kwargs": dict(call.kwargs)}
    step = BadStep(
        step=row,
        micro_batches=[(batch, call.random_state, about)],
        config={},
        precision=_precision(call.model, autocast),
        device=device,
        exact=event.kind != "parameters",
    )
    path = writer.capture(call.model, step)
    return "" if path is None else str(path)


def _precision(model: nn.Module, autocast: str) -> Precision:
    if any(p.dtype is torch.float16 for p in model.parameters()):
        return Precision.FP16_WEIGHTS
    if autocast == "bfloat16":
        return Precision.BF16_MIXED
    return Precision.FP16_MIXED if autocast else Precision.FP32
