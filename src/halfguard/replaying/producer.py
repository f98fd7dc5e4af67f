"""The operation that made the first bad number of a replayed step, as it was or varied."""

from __future__ import annotations

from torch import Tensor

from halfguard.records.culprit import Culprit
from halfguard.replaying.gradients import scaled
from halfguard.replaying.replayed_step import NOTHING, ReplayedStep, Variation
from halfguard.tracing.first_nonfinite import find_first_nonfinite


def first_bad_number(step: ReplayedStep, variation: Variation = NOTHING) -> Culprit | None:
    """Where it was made, looked for in one micro-batch after the other; None if all is finite."""
    with variation.within:
        for index in range(len(step.batches)):
            found = _in_micro_batch(step, index, variation)
            if found is not None:
                return found
    return None


def _in_micro_batch(step: ReplayedStep, index: int, variation: Variation) -> Culprit | None:
    # Model and batch are copied before anybody watches: a copy of a bad number is not its origin.
    model, batch = step.copy(variation), step.batch(index, variation)
    scale = step.scale if variation.scale is None else variation.scale

    def loss() -> Tensor:
        return scaled(step.part(model, index, batch, variation), scale)

    return find_first_nonfinite(loss, model)
