"""HD104: weights in 16 bits are updated in 16 bits.

The numbers next to 1 are 2**-11 below and 2**-10 above it in FP16, and 2**-8 and 2**-7 in BF16. At a weight
of 1, updates smaller than half of that are lost at every step.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.measured_precision import dtype_name
from halfguard.diagnosis.model.training_setup import TrainingSetup, count_are, join_names
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find half weights without master weights; HD102 reports those for which a scaler raises."""
    found = [
        one
        for one in setup.trained_in_half
        if not (setup.scaler_enabled and one.tensor.dtype is torch.float16)
    ]
    if not found or setup.has_frozen_half_base:
        return
    dtype = found[0].tensor.dtype
    yield Finding(
        code="HD104",
        severity="error" if dtype is torch.float16 else "warning",
        message=f"{count_are(len(found), 'trainable parameter')} {dtype_name(dtype)}, "
        f"without FP32 master weights: {join_names(one.name for one in found)}.",
        subject=found[0].name,
        why=f"At a weight of 1, an update below {torch.finfo(dtype).eps / 4:.1g} is rounded away.",
        cure=setup.half_weights_cure,
    )
