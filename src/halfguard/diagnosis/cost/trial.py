"""One job that is stepped in one precision, again and again, always on the same few batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfguard.guard.stepping.scaler import GradScaler
from halfguard.precision.modes import Precision, autocast
from halfguard.workload import Workload

SETTLING = 24  # skipped steps after which a loss scale that does not settle is left alone


class Trial:
    """A bare step: autocast, forward, backward, loss scale, optimizer; what a plain loop does."""

    def __init__(self, workload: Workload, precision: Precision, batches: Sequence[Any]) -> None:
        self.workload, self.precision, self.batches = workload, precision, batches
        self.scaler = GradScaler(workload.device.type, enabled=precision.needs_loss_scale)
        self._count = 0

    def step(self) -> None:
        """The next batch; a step that overflows is skipped, as it would be in training."""
        workload = self.workload
        batch = self.batches[self._count % len(self.batches)]
        self._count += 1
        workload.optimizer.zero_grad()
        with autocast(self.precision, workload.device.type):
            loss = workload.loss_of(batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(workload.optimizer)
        self.scaler.update()

    def settle(self) -> None:
        """Step until the loss scale fits: a skipped step would be cheaper than it will be later."""
        for _ in range(SETTLING):
            before = self.scaler.get_scale()
            self.step()
            if self.scaler.get_scale() >= before:
                break
        self._count = 0


def trials(
    workload: Workload, precisions: Sequence[Precision], batches: Sequence[Any]
) -> list[Trial]:
    """A trial a precision. Those with FP32 weights share one model: together they need its room once."""
    workload.model.train()
    found: list[Trial] = []
    for precision in precisions:
        job = workload
        if precision.needs_master_weights:
            job = workload.fresh()
            job.model.train()
            job.store_weights_as(precision)
        found.append(Trial(job, precision, batches))
    return found
