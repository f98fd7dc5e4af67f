"""The limits below which a repeated step counts as good.

A step that was not finite is good if it is finite. After a spike that is not enough: loss and norm must be
in the range of healthy steps. The incident does not hold the limit that applied, but the rows before it
show what passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from halfguard.errors import RecordError
from halfguard.records import Cause, HealthyStepsRow, IncidentRecord, parse_journal_row


@dataclass(frozen=True)
class GoodStepLimits:
    """The largest loss and gradient norm of a good step."""

    loss: float = inf
    grad_norm: float = inf


def good_step_limits(record: IncidentRecord) -> GoodStepLimits:
    """Return the limits, from the cause, the configuration, and the healthy steps before this one."""
    windows = _windows(record)
    if record.step.cause is Cause.LOSS_SPIKE:
        return GoodStepLimits(loss=max((w.loss_max for w in windows), default=record.step.loss / 2))
    if record.step.cause is not Cause.GRADIENT_SPIKE:
        return GoodStepLimits()
    skip = record.config.get("skip")
    fixed = skip.get("max_grad_norm") if isinstance(skip, dict) else None
    if isinstance(fixed, float | int) and record.step.grad_norm > fixed:
        return GoodStepLimits(grad_norm=float(fixed))
    return GoodStepLimits(
        grad_norm=max((w.grad_norm_max for w in windows), default=record.step.grad_norm / 2)
    )


def _windows(record: IncidentRecord) -> list[HealthyStepsRow]:
    rows = []
    for text in record.recent:
        try:
            row = parse_journal_row(text)
        except RecordError:
            continue  # a row of a later version, or a damaged one
        if isinstance(row, HealthyStepsRow):
            rows.append(row)
    return rows
