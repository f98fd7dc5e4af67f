"""The plan of a run, ``plan.yaml`` in its folder: the user's islands and those that the guard made."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from halfguard.dist.collectives import broadcast_object, rank, run_on_all
from halfguard.errors import RecordError
from halfguard.records.plan import AnyIsland, Island, LineIsland, PrecisionPlan

PLAN_FILE = "plan.yaml"

logger = logging.getLogger("halfguard")


class PlanFile:
    """Reads and writes the plan; rank 0 does, and tells the others."""

    def __init__(
        self, run_dir: Path | None, given: PrecisionPlan, precision: str, device: torch.device
    ) -> None:
        self.path = None if run_dir is None else run_dir / PLAN_FILE
        self._given = given.model_copy(update={"precision": precision})
        self._device = device

    def read(self) -> list[AnyIsland]:
        """Return the islands of an earlier run in this folder. Every rank must call this."""
        found, errors = run_on_all(self._load, self._device)
        if errors:  # on every rank: one that waits for the others' plan would wait forever
            raise RecordError(f"The plan of an earlier run cannot be read: {errors[0]}")
        text = broadcast_object(0, None if found is None else found.to_yaml(), self._device)
        if text is None:
            return []
        plan = PrecisionPlan.from_yaml(text)
        given = {(one.module, one.kind) for one in self._given.islands}
        given_lines = {(one.file, one.line, one.kind) for one in self._given.lines}
        modules = [one for one in plan.islands if (one.module, one.kind) not in given]
        lines = [one for one in plan.lines if (one.file, one.line, one.kind) not in given_lines]
        return [*modules, *lines]

    def _load(self) -> PrecisionPlan | None:
        if self.path is None or rank() != 0 or not self.path.is_file():
            return None
        return PrecisionPlan.load(self.path)

    def write(self, healed: Sequence[AnyIsland]) -> None:
        """Write the file atomically. A disk that fails does not end the run."""
        if self.path is None or rank() != 0:
            return
        modules = [one for one in (*self._given.islands, *healed) if isinstance(one, Island)]
        wide = {one.module for one in modules if one.kind == "fp32"}
        lines = [island for island in healed if isinstance(island, LineIsland)]
        plan = self._given.model_copy(
            update={
                # A layer that was rescaled first, and runs in FP32 now, has one entry.
                "islands": tuple(i for i in modules if i.kind == "fp32" or i.module not in wide),
                "lines": (*self._given.lines, *lines),
            }
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            plan.save(self.path)
        except OSError as error:
            logger.warning(
                "The plan cannot be written to %s: %s. Training continues.", self.path, error
            )

    def __str__(self) -> str:
        return "no plan file (no run_dir)" if self.path is None else str(self.path)
