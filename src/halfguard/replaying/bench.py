"""The step of an incident as the bench of a search, so that replay and the guard find the same islands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from halfguard.precision.modes import autocast_dtype
from halfguard.precision.upcast import half_tensors_in_fp32
from halfguard.precision_names import Precision
from halfguard.replaying.replayed_step import ReplayedStep, Variation, scale_loss
from halfguard.tracing.audit import restored
from halfguard.trials.bench import StepBench, make_bench
from halfguard.trials.line_islands import LineIslands
from halfguard.trials.runner import Runner, do_nothing

_FP32 = Variation(precision=Precision.FP32)


class ReplayRunner(Runner):
    """Runs the step on one copy of the model."""

    def __init__(self, step: ReplayedStep, lines: LineIslands) -> None:
        self._step, self._lines = step, lines
        self.model = step.copy()
        self.half = autocast_dtype(step.precision) or torch.float16

    def in_half(self, scale: float) -> Callable[..., Tensor]:
        """Return the step as it was, at a loss scale."""
        return lambda collect=do_nothing: self._run(scale, Variation(), collect)

    def in_fp32(self) -> Callable[..., Tensor]:
        """Return the step in FP32."""

        def run(collect: Callable[[], None] = do_nothing) -> Tensor:
            with half_tensors_in_fp32(self.model):
                return self._run(1.0, _FP32, collect)

        return run

    def unchanged(self) -> AbstractContextManager[None]:
        """Restore gradients, buffers and random state."""
        return restored(self.model)

    def _run(self, scale: float, variation: Variation, collect: Callable[[], None]) -> Tensor:
        losses = []
        for index in range(len(self._step.batches)):
            with self._lines.active():
                part = self._step.part(self.model, index, self._step.batch(index), variation)
                scale_loss(part, scale).backward()  # type: ignore[no-untyped-call]
            losses.append(part.detach())
        collect()
        return torch.stack([loss.float() for loss in losses]).sum()


def replay_bench(step: ReplayedStep) -> StepBench | None:
    """Return the bench of a step; None if it is not finite in FP32 either."""
    lines = LineIslands()
    runner = ReplayRunner(step, lines)
    rescaling = not step.precision.needs_master_weights
    return make_bench(runner, lines, step.scale, step.device, lines="all", rescaling=rescaling)
