"""The bad step of a guarded run as the bench of a search: every rank makes the same calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from halfguard.dist.collectives import all_agree, all_gather_object, run_on_all
from halfguard.records.plan import Island
from halfguard.trials.applied_islands import AppliedIslands
from halfguard.trials.producer import (
    AnyIsland,
    Lines,
    Producer,
    find_candidates,
    modules_by_name,
)
from halfguard.trials.proof import BadStep, Proof


class GuardBench:
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
        self._lines, self._rescaling = lines, rescaling
        self.costs, self.paths = step.costs, list(modules_by_name(model))

    def prove(self, islands: Sequence[AnyIsland], producer: Producer) -> Proof:
        """Run the step with exactly these islands."""
        with self._applied.trial(islands):
            return self._step.prove(producer)

    def find_producer(self, islands: Sequence[AnyIsland]) -> Producer | None:
        """Return the operation that makes the first bad number with these islands."""
        with self._applied.trial(islands):
            return agree_on_producer(self._step, self._device)[0]

    def candidates(self, producer: Producer) -> list[AnyIsland]:
        """Return the islands that cover an operation, in modules that all ranks have."""
        found = find_candidates(producer, self._model, lines=self._lines, rescaling=self._rescaling)
        return [island for island in found if all_agree(self._is_new(island), self._device)]

    def _is_new(self, island: AnyIsland) -> bool:
        if not isinstance(island, Island):
            return True
        return island.module in self.paths and not self._applied.covers(island.module)


def agree_on_producer(step: BadStep, device: torch.device) -> tuple[Producer | None, list[str]]:
    """Return the producer of the first rank that finds one, and errors. Every rank must call this."""
    mine, errors = run_on_all(step.find_producer, device)
    if errors:
        return None, errors
    found = all_gather_object(None if mine is None else mine.to_dict())
    return next((Producer.load(one) for one in found if one is not None), None), []
