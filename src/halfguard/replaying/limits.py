"""What a repeated step may at most have to count as good.

A step that was not finite is good when it is finite. After a spike that is not enough: it must come down to
what healthy steps had. The incident does not hold the limit that was in force, but the rows before it say
what passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from halfguard.errors import RecordError
from halfguard.records import Cause, IncidentRecord, WindowRow, row_from_json


@dataclass(frozen=True)
class Limits:
    """The largest loss and gradient norm of a good step."""

    loss: float = inf
    grad_norm: float = inf


def limits_of(record: IncidentRecord) -> Limits:
    """From the cause, the configuration, and the healthy steps before this one."""
    windows = _windows(record)
    if record.step.cause is Cause.LOSS_SPIKE:
        return Limits(loss=max((w.loss_max for w in windows), default=record.step.loss / 2))
    if record.step.cause is not Cause.GRADIENT_SPIKE:
        return Limits()
    skip = record.config.get("skip")
    fixed = skip.get("max_grad_norm") if isinstance(skip, dict) else None
    if isinstance(fixed, float | int) and record.step.grad_norm > fixed:
        return Limits(grad_norm=float(fixed))
    return Limits(
        grad_norm=max((w.grad_norm_max for w in windows), default=record.step.grad_norm / 2)
    )


def _windows(record: IncidentRecord) -> list[WindowRow]:
    rows = []
    for text in record.recent:
        try:
            row = row_from_json(text)
        except RecordError:
            continue  # a row of a later version, or a damaged one: evidence less, no obstacle
        if isinstance(row, WindowRow):
            rows.append(row)
    return rows
