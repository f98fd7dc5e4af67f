"""The incidents of a guarded run: what the guard knows about a bad step, given to the writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from halfguard.dist.collectives import rank, world_size
from halfguard.guard.config import GuardConfig, IncidentConfig
from halfguard.guard.consensus import Gradients
from halfguard.guard.step_batches import StepBatches
from halfguard.incident.capture import BadStep, IncidentWriter
from halfguard.journal import collect_environment
from halfguard.records import JournalRow, StepRow
from halfguard.step.random_state import portable_random_state

_MAX_BYTES = 4 * 2**30  # of one incident


class Incidents(IncidentWriter):
    """Writes the incidents of this rank below ``run_dir``."""

    def __init__(
        self, rules: IncidentConfig, device: torch.device, run_dir: Path, entry: str
    ) -> None:
        super().__init__(
            run_dir / "incidents",
            keep=rules.keep,
            max_bytes=_MAX_BYTES,
            weights=rules.weights,
            environment=collect_environment(device),
            rank=rank(),
            world_size=world_size(),
            entry=entry,
        )
        self._device = device

    def capture_step(
        self,
        model: nn.Module,
        config: GuardConfig,
        row: StepRow,
        batches: StepBatches,
        gradients: Gradients,
        recent: Sequence[JournalRow],
        *,
        exact: bool,
    ) -> None:
        """Capture a bad step of which this rank is one; ``recent`` are the rows before it."""
        # Gradients were averaged over all ranks: a single one cannot repeat them.
        norms = gradients.norms.tolist() if world_size() == 1 else None
        bad_step = BadStep(
            step=row,
            micro_batches=[
                (m.batch, portable_random_state(m.rng), m.about) for m in batches.micro_batches
            ],
            config=config.model_dump(mode="json"),
            precision=config.precision,
            device=self._device.type,
            grad_norms={} if norms is None else dict(zip(gradients.names, norms, strict=True)),
            exact=exact,
            recent=[row.to_json() for row in recent],
            private=config.privacy,
        )
        self.capture(model, bad_step)
