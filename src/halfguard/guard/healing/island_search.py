"""Search the smallest proven island of a producer, on one bad step.

Candidates are tried one at a time. If none of them is enough, several operations may fail in the same step:
then modules are added, each that of the operation which is found with the others in FP32. The whole model is
tried last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from halfguard.dist.collectives import all_agree, all_gather_object, run_on_all
from halfguard.guard.healing.applied_islands import AppliedIslands
from halfguard.guard.healing.producer import AnyIsland, Producer, find_candidates, name_of
from halfguard.guard.healing.proof import BadStep, Proof
from halfguard.guard.healing.trial_steps import TrialSteps
from halfguard.records.plan import Island, LineIsland


@dataclass(frozen=True)
class Found:
    """Islands that together cure a step, each with its producer; none if nothing was proven."""

    islands: tuple[tuple[AnyIsland, Producer], ...] = ()
    proof: Proof = field(default_factory=partial(Proof, holds=False))


class IslandSearch:
    """Tries islands on a bad step; ``present`` are those that are decided already."""

    def __init__(
        self, applied: AppliedIslands, trials: TrialSteps, device: torch.device, *, eager: bool
    ) -> None:
        self._applied, self._trials, self._device = applied, trials, device
        self._eager = eager

    def is_cured(self, step: BadStep, producer: Producer, present: Sequence[AnyIsland]) -> bool:
        """Return whether the islands that are decided cure this fault. Every rank must call this."""
        with self._applied.trial(present):
            return step.prove(producer).holds

    def run(
        self,
        step: BadStep,
        producer: Producer,
        present: Sequence[AnyIsland],
        tried: list[str],
        limit: int,
    ) -> Found:
        """Return at most ``limit`` islands; add those that fail to ``tried``. Every rank must call this."""
        candidates = self._new_candidates(producer, present, tried)
        whole = [island for island in candidates if island == Island(module="")]
        lines = [island for island in candidates if isinstance(island, LineIsland)]
        modules = [island for island in candidates if island not in (*whole, *lines)]
        # Lines come after modules: a mode that looks at every call is not free.
        for group in (modules, lines, whole):
            for island in group:
                found = self._try(step, [(island, producer)], present)
                if found.islands:
                    return found
                tried.append(name_of(island))
            if group is modules and modules:
                found = self._grow(step, producer, present, limit)
                if found.islands:
                    return found
        return Found()

    def _try(
        self,
        step: BadStep,
        islands: Sequence[tuple[AnyIsland, Producer]],
        present: Sequence[AnyIsland],
    ) -> Found:
        with self._applied.trial([*present, *(island for island, _ in islands)]):
            proof = step.prove(islands[0][1])
        return Found(tuple(islands), proof) if proof.holds else Found()

    def _grow(
        self, step: BadStep, producer: Producer, present: Sequence[AnyIsland], limit: int
    ) -> Found:
        """Add the smallest island of each further operation that fails."""
        islands: list[tuple[AnyIsland, Producer]] = []
        following: Producer | None = producer
        while following is not None and len(islands) < limit:
            made = [*present, *(island for island, _ in islands)]
            new = self._new_candidates(following, made, [])
            if not new or new[0] == Island(module=""):
                return Found()
            islands.append((new[0], following))
            if len(islands) > 1 and (found := self._try(step, islands, present)).islands:
                return found
            with self._applied.trial([*made, new[0]]):
                following = agree_on_producer(step, self._device)[0]
        return Found()

    def _new_candidates(
        self, producer: Producer, made: Sequence[AnyIsland], tried: Sequence[str]
    ) -> list[AnyIsland]:
        found = find_candidates(producer, self._trials.model, eager=self._eager)
        known = {*tried, *map(name_of, made)}
        return [island for island in found if name_of(island) not in known and self._is_new(island)]

    def _is_new(self, island: AnyIsland) -> bool:
        """Return whether all ranks have the module, and it is no island yet."""
        if not isinstance(island, Island):
            return True
        new = self._applied.has_module(island.module) and not self._applied.covers(island.module)
        return all_agree(new, self._device)


def agree_on_producer(step: BadStep, device: torch.device) -> tuple[Producer | None, list[str]]:
    """Return the producer of the first rank that finds one, and errors. Every rank must call this."""
    mine, errors = run_on_all(step.find_producer, device)
    if errors:
        return None, errors
    found = all_gather_object(None if mine is None else mine.to_dict())
    return next((Producer.load(one) for one in found if one is not None), None), []
