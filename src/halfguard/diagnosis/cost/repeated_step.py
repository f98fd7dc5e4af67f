"""The plain training step in one precision, repeated on the same few batches, to measure its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfguard.precision_names import Precision
from halfguard.workload import TrainingStep, Workload

MAX_SETTLING_STEPS = 24  # skipped steps after which a loss scale that does not settle is left alone


class RepeatedStep(TrainingStep):
    """A training step over the same batches in turn, under the machine's own autocast rules."""

    def __init__(self, workload: Workload, precision: Precision, batches: Sequence[Any]) -> None:
        super().__init__(workload, precision, cuda_rules=False)
        self.batches, self._count = batches, 0

    def run_next(self) -> None:
        """Train on the next batch; a step that overflows is skipped, as in normal training."""
        batch = self.batches[self._count % len(self.batches)]
        self._count += 1
        self(batch)

    def settle(self) -> None:
        """Train until the loss scale fits: a skipped step is faster than a normal one."""
        for _ in range(MAX_SETTLING_STEPS):
            before = self.scaler.get_scale()
            self.run_next()
            if self.scaler.get_scale() >= before:
                break
        self._count = 0


def make_repeated_steps(
    workload: Workload, precisions: Sequence[Precision], batches: Sequence[Any]
) -> list[RepeatedStep]:
    """Return one step per precision; precisions with FP32 weights share one model to save memory."""
    steps: list[RepeatedStep] = []
    for precision in precisions:
        job = workload.fresh() if precision.needs_master_weights else workload
        job.model.train()
        job.store_weights_as(precision)
        steps.append(RepeatedStep(job, precision, batches))
    return steps
