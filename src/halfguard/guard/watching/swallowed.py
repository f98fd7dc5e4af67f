"""The audit of a sampled step in which a new line left the range of half.

The step is run again before its update: same weights, batches and random numbers, on this rank alone. What
the second run changes (gradients, buffers, attributes of modules, generators) is put back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from halfguard.dist.wrapping import is_sharded, unwrap_model
from halfguard.guard.step_batches import MicroBatch, StepBatches
from halfguard.precision.modes import autocast
from halfguard.precision_names import PrecisionName
from halfguard.records.audit import AuditFinding, AuditReport
from halfguard.tracing.audit import audit

logger = logging.getLogger("halfguard")


@dataclass(frozen=True)
class Alarm:
    """A fault that an audit found in a running job: the operation, and what it did to the step."""

    step: int
    finding: AuditFinding
    loss_error: float  # relative, against the same step in FP32 from the operation on
    gradient_error: float

    def __str__(self) -> str:
        return str(self.finding)


def can_audit(model: nn.Module, batches: StepBatches) -> bool:
    """Return whether this rank can run the step again by itself."""
    return batches.repeatable and not batches.changed_in_place and not is_sharded(model)


def audit_step(
    model: nn.Module,
    batches: StepBatches,
    precision: PrecisionName,
    scale: float,
    preserved: Callable[[], AbstractContextManager[None]],
) -> AuditReport | None:
    """Audit the micro-batches one by one, up to the first with a finding; None if it failed.

    ``preserved`` returns a context that puts back what the loss function changes.
    """
    own = unwrap_model(model)  # no DDP: its forward pass would need the other ranks
    report = None
    for micro in batches.micro_batches:
        try:
            with preserved(), micro.as_given():
                report = audit(partial(_loss, own, micro, precision, scale), own)
        except Exception as error:  # noqa: BLE001 - out of memory, for example: training goes on
            logger.info("The audit of a sampled step failed: %s: %s", type(error).__name__, error)
            return None
        if report.findings:
            return report
    return report


def _loss(model: nn.Module, micro: MicroBatch, precision: PrecisionName, scale: float) -> Tensor:
    micro.restore_generators()
    device = next(model.parameters()).device
    with autocast(precision, device.type):
        loss = micro.loss_of(model, micro.batch)
    return loss * scale
