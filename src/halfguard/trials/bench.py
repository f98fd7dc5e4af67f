"""A bad step as the bench of a search: every rank makes the same calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from halfguard.dist.collectives import all_gather_object, run_on_all
from halfguard.records.plan import AnyIsland, Island
from halfguard.trials.applied_islands import AppliedIslands
from halfguard.trials.line_islands import LineIslands
from halfguard.trials.producer import Lines, Producer, find_candidates, modules_by_name, name_of
from halfguard.trials.proof import BadStep, Proof
from halfguard.trials.runner import Runner


class StepBench:
    """Tries islands in the model itself; ``lines`` and ``rescaling`` say which kinds can be made."""

    def __init__(
        self,
        step: BadStep,
        applied: AppliedIslands,
        model: nn.Module,
        device: torch.device,
        *,
        lines: Lines,
        rescaling: bool,
    ) -> None:
        self._step, self._applied, self._model, self._device = step, applied, model, device
        self._lines, self.rescaling = lines, rescaling
        self.costs, self.modules = step.costs, modules_by_name(model)

    def prove(self, islands: Sequence[AnyIsland], producer: Producer) -> Proof:
        """Run the step with exactly these islands."""
        with self._applied.trial(islands):
            return self._step.prove(producer)

    def find_producer(self, islands: Sequence[AnyIsland]) -> Producer | None:
        """Return the operation that returns the first NaN or Inf with these islands."""
        with self._applied.trial(islands):
            return agree_on_producer(self._step, self._device)[0]

    def candidates(self, producer: Producer) -> list[AnyIsland]:
        """Return the islands that cover an operation, in modules that all ranks have."""
        found = find_candidates(
            producer, self._model, self.costs, lines=self._lines, rescaling=self.rescaling
        )
        new = {
            name_of(island): island
            for island in found
            if not isinstance(island, Island) or not self._applied.covers(island.module)
        }
        # One exchange: ranks whose modules differ have other candidates, and another number of them.
        everywhere = set.intersection(*map(set, all_gather_object(list(new))))
        return [island for name, island in new.items() if name in everywhere]


def make_bench(
    runner: Runner,
    line_islands: LineIslands,
    scale: float,
    device: torch.device,
    *,
    lines: Lines,
    rescaling: bool,
) -> StepBench | None:
    """Return the bench of a step that a runner repeats; None if it is not finite in FP32 either."""
    step = BadStep(runner, scale, device)
    if not step.is_finite_in_fp32():
        return None
    applied = AppliedIslands(runner.model, (), line_islands)
    return StepBench(step, applied, runner.model, device, lines=lines, rescaling=rescaling)


def agree_on_producer(step: BadStep, device: torch.device) -> tuple[Producer | None, list[str]]:
    """Return the producer of the first rank that finds one, and errors. Every rank must call this."""
    mine, errors = run_on_all(step.find_producer, device)
    if errors:
        return None, errors
    return next(filter(None, all_gather_object(mine)), None), []
