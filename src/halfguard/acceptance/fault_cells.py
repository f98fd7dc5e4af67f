"""The cells of the fault matrix: what goes wrong, where in a run, in which kind of run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from halfguard.acceptance.jobs import OPTIMIZERS, Batch, make_batch
from halfguard.records import Action, Cause


@dataclass(frozen=True)
class Fault:
    """A change of one batch, the cause that must be named, and whether FP32 cures it."""

    name: str
    part: str
    value: float
    cause: Cause
    cured_by_fp32: bool = False

    def plant(self, batch: Batch) -> Batch:
        """Return the batch with the fault in it."""
        planted = {name: tensor.clone() for name, tensor in batch.items()}
        place = planted[self.part][1, 2] if self.part == "x" else planted[self.part]
        place.fill_(self.value)
        return planted


FAULTS = (
    Fault("NaN in the batch", "x", math.nan, Cause.BAD_BATCH),
    Fault("infinity in the batch", "x", math.inf, Cause.BAD_BATCH),
    Fault("overflow in the forward pass", "value", 1e6, Cause.FORWARD_OVERFLOW, cured_by_fp32=True),
    Fault("NaN in the loss", "nan_loss", 1, Cause.FORWARD_OVERFLOW),
    Fault("NaN in the gradient", "gradient", math.nan, Cause.GRADIENT_OVERFLOW),
    Fault("overflow in the gradient", "gradient", 1e6, Cause.GRADIENT_OVERFLOW, cured_by_fp32=True),
)
# Healthy steps before the fault, micro-batches per step, and the one of them with the fault.
PHASES = {
    "in the first step": (0, 1, 0),
    "in a later step": (5, 1, 0),
    "in the first of four micro-batches": (3, 4, 0),
    "in the last of four micro-batches": (3, 4, 3),
}
MODELS = ("MLP with BatchNorm", "transformer")


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    fault: Fault
    phase: str
    model: str
    optimizer: str
    retry: bool

    def __str__(self) -> str:
        reaction = "repeated in FP32" if self.retry else "skipped"
        return f"{self.fault.name} {self.phase}, {reaction}: {self.model}, {self.optimizer}"

    @property
    def action(self) -> Action:
        """What the guard must do."""
        return Action.RETRY if self.retry and self.fault.cured_by_fp32 else Action.SKIP

    @property
    def lowers_scale(self) -> bool:
        """True if gradients overflowed, unless repeating in FP32 showed that no scale helps."""
        helpless = self.retry and not self.fault.cured_by_fp32
        return self.fault.cause is Cause.GRADIENT_OVERFLOW and not helpless

    def batches(self, step: int, device: torch.device) -> list[Batch]:
        """Return the micro-batches of a step; the fault is planted after the healthy steps."""
        before, count, planted = PHASES[self.phase]
        made = [make_batch(100 * step + index, device) for index in range(count)]
        if step == before:
            made[planted] = self.fault.plant(made[planted])
        return made


def cells(*, every: bool) -> Iterator[Cell]:
    """Return every cell, or a sample that has each fault in each phase and each kind of run."""
    pairs = list(itertools.product(FAULTS, PHASES))
    kinds = list(itertools.product(MODELS, OPTIMIZERS, (False, True)))
    if every:
        yield from (Cell(*pair, *kind) for pair, kind in itertools.product(pairs, kinds))
        return
    yield from (
        Cell(*pair, *kind) for pair, kind in zip(pairs, itertools.cycle(kinds), strict=False)
    )
