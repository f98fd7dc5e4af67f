"""Run steps of a job in 16 bits, beside its training, to find operations that leave the range of half.

Ranges of modules say nothing about the loss function, and an overflow that becomes 0 leaves no trace in the
loss. So some steps are run once more under ``find_first_nonfinite``: it names the line, in a module or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halfguard.precision_names import Precision
from halfguard.records.culprit import Culprit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.workload import TrainingStep, Workload
from halfguard.workload.user_error import describe_error

AUDITS = 20  # of one run at most, evenly spread
_FACTOR = 16.0  # by which the loss scale falls if a gradient overflows


@dataclass(frozen=True)
class StepFault:
    """A step that is wrong in 16 bits: the operation, or the exception that it raised."""

    step: int
    culprit: Culprit | None
    raised: str = ""


class HalfAudit:
    """Audits steps of a workload in 16 bits; weights, gradients, buffers and generators stay as they are."""

    def __init__(self, workload: Workload, precision: Precision, scale: float) -> None:
        is_half = precision in (Precision.FP16_MIXED, Precision.BF16_MIXED)
        self._step = TrainingStep(workload, precision if is_half else Precision.FP16_MIXED)
        self._scale = scale if self._step.precision.needs_loss_scale else 1.0

    def find(self, batch: Any, index: int) -> list[StepFault]:
        """Run one batch; return the fault of its step, if it has one."""
        try:
            culprit = self._culprit(batch)
        except Exception as error:  # noqa: BLE001 - the user's code, in a precision it may not know
            return [StepFault(index, None, describe_error(error))]
        return [] if culprit is None else [StepFault(index, culprit)]

    def _culprit(self, batch: Any) -> Culprit | None:
        model = self._step.workload.model
        while True:
            scale = self._scale
            culprit = find_first_nonfinite(lambda s=scale: self._step.loss_of(batch) * s, model)  # type: ignore[misc]
            is_scale = culprit is not None and culprit.phase == "backward" and not culprit.swallowed
            if not is_scale or scale <= 1.0:
                return culprit
            self._scale = max(scale / _FACTOR, 1.0)  # a dynamic scale would fall


def audited_steps(steps: int) -> frozenset[int]:
    """Return the steps to audit: all of a short run, evenly spread ones of a long run."""
    count = min(steps, AUDITS)
    return frozenset(index * steps // count for index in range(count))
