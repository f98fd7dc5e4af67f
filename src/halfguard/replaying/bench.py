"""The step of an incident as the bench of a search, so that replay and the guard find the same islands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from halfguard.dist.collectives import run_on_all
from halfguard.precision.modes import autocast_dtype
from halfguard.precision_names import Precision
from halfguard.records.plan import LineIsland
from halfguard.replaying.replayed_step import ReplayedStep, Variation, scale_loss
from halfguard.tracing.audit import restored
from halfguard.trials.applied_islands import AppliedIslands
from halfguard.trials.line_islands import LineIslands
from halfguard.trials.producer import AnyIsland, Producer, find_candidates, modules_by_name
from halfguard.trials.proof import BadStep, Proof
from halfguard.trials.runner import Runner, do_nothing, half_tensors_in_fp32

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


class ReplayBench:
    """Tries islands in a copy of the model."""

    def __init__(self, step: ReplayedStep) -> None:
        lines = LineIslands()
        runner = ReplayRunner(step, lines)
        self._model, self._rescaling = runner.model, not step.precision.needs_master_weights
        self._applied = AppliedIslands(runner.model, (), lines)
        self._step, self._device = BadStep(runner, step.scale, step.device), step.device
        self.is_finite_in_fp32 = self._step.is_finite_in_fp32()
        self.costs, self.modules = self._step.costs, modules_by_name(runner.model)

    def prove(self, islands: Sequence[AnyIsland], producer: Producer) -> Proof:
        """Run the step with exactly these islands."""
        with self._applied.trial(islands):
            return self._step.prove(producer)

    def find_producer(self, islands: Sequence[AnyIsland]) -> Producer | None:
        """Return the operation that makes the first bad number; None if the user's code raises."""
        with self._applied.trial(islands):
            found: Producer | None = run_on_all(self._step.find_producer, self._device)[0]
        return found

    def candidates(self, producer: Producer) -> list[AnyIsland]:
        """Return the islands that cover an operation, lines too."""
        found = find_candidates(producer, self._model, lines="all", rescaling=self._rescaling)
        return [i for i in found if isinstance(i, LineIsland) or not self._applied.covers(i.module)]
