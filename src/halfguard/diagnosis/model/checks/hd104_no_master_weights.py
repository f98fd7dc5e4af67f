"""HD104: weights in 16 bits are updated in 16 bits.

The numbers next to 1 are 2**-11 below and 2**-10 above it in FP16, and 2**-8 and 2**-7 in BF16. At a weight
of 1, updates smaller than half of that are lost at every step. It is a problem if the updates of this
optimizer are that small, and otherwise a note: with a high learning rate half weights may train well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from halfguard.diagnosis.model.graph import loss_in
from halfguard.diagnosis.model.measured_precision import dtype_name
from halfguard.diagnosis.model.training_setup import (
    OptimizerParameter,
    TrainingSetup,
    count_are,
    join_names,
)
from halfguard.diagnosis.model.updates import MUCH, lost_share, needs_gradients
from halfguard.records.finding import Finding, Severity


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find half weights without master weights; HD102 reports those for which a scaler raises."""
    found = [
        one
        for one in setup.trained_in_half
        if not (setup.scaler_enabled and one.tensor.dtype is torch.float16)
    ]
    if not found or setup.has_frozen_half_base:
        return
    dtype, share = found[0].tensor.dtype, lost_share(found, setup.gradients)
    yield Finding(
        code="HD104",
        severity=_severity(dtype, share),
        message=f"{count_are(len(found), 'trainable parameter')} {dtype_name(dtype)}, "
        f"without FP32 master weights: {join_names(one.name for one in found)}."
        f"{_describe(share, found, setup)}",
        subject=found[0].name,
        why=f"At a weight of 1, an update below {torch.finfo(dtype).eps / 4:.1g} is rounded away.",
        cure=setup.half_weights_cure,
    )


def _severity(dtype: torch.dtype, share: float | None) -> Severity:
    if share is None or share < MUCH:
        return "note"
    return "error" if dtype is torch.float16 else "warning"


def _describe(
    share: float | None, found: Sequence[OptimizerParameter], setup: TrainingSetup
) -> str:
    if share is not None:
        lost = f"{share:.0%}" if share >= 0.01 or not share else "less than 1%"
        return f" At this learning rate about {lost} of the updates, by size, is rounded away."
    optimizer = found[0].optimizer
    if optimizer is None:
        return " How many updates are lost depends on the optimizer."
    if _has_loss(setup) or not any(map(needs_gradients, found)):
        return f" How many updates are lost is not known for {type(optimizer).__name__}."
    return " How many updates are lost depends on the gradients: pass loss and batch to measure it."


def _has_loss(setup: TrainingSetup) -> bool:
    loss = None if setup.forward is None else loss_in(setup.forward.result)
    return loss is not None and loss.numel() == 1
