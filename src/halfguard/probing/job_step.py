"""One step of a job as the bench of a search, so that a plan has the islands that the guard would make."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from halfguard.precision.modes import autocast_dtype
from halfguard.precision_names import Precision
from halfguard.step.random_state import capture_random_state, restore_random_state, seeded
from halfguard.tracing.audit import restored
from halfguard.trials.bench import StepBench, make_bench
from halfguard.trials.line_islands import LineIslands
from halfguard.trials.runner import Runner, do_nothing
from halfguard.workload import TrainingStep, Workload


class JobRunner(Runner):
    """Runs one step of a job, with the weights that FP32 has before it."""

    def __init__(
        self, workload: Workload, precision: Precision, index: int, lines: LineIslands
    ) -> None:
        self.model = workload.model
        self.half = autocast_dtype(precision) or torch.float16
        self._half_step = TrainingStep(workload, precision)
        self._fp32_step = TrainingStep(workload, Precision.FP32)
        self._lines = lines
        *before, self._batch = workload.take(index + 1)
        self.model.train()
        with seeded(workload.seed):
            for batch in before:
                self._fp32_step(batch)
            self._random_state = capture_random_state()

    def in_half(self, scale: float) -> Callable[..., Tensor]:
        """Return the step in 16 bits, at a loss scale."""
        return lambda collect=do_nothing: self._run(self._half_step, scale, collect)

    def in_fp32(self) -> Callable[..., Tensor]:
        """Return the step in FP32."""
        return lambda collect=do_nothing: self._run(self._fp32_step, 1.0, collect)

    def unchanged(self) -> AbstractContextManager[None]:
        """Restore gradients, buffers and random state."""
        return restored(self.model)

    def _run(self, step: TrainingStep, scale: float, collect: Callable[[], None]) -> Tensor:
        restore_random_state(self._random_state)
        with self._lines.active():
            loss = step.loss_of(self._batch)
            (loss * scale).backward()  # type: ignore[no-untyped-call]
        collect()
        return loss.detach()


def job_bench(
    workload: Workload, precision: Precision, index: int, scale: float
) -> StepBench | None:
    """Return the bench of step ``index`` of a fresh job; None if it is not finite in FP32 either."""
    lines = LineIslands()
    runner = JobRunner(workload, precision, index, lines)
    scale = scale if precision.needs_loss_scale else 1.0
    return make_bench(runner, lines, scale, workload.device, lines="of modules", rescaling=True)
