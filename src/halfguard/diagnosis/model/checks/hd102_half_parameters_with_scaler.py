"""HD102: a GradScaler raises for FP16 parameters, or is bypassed and small updates are lost.

torch raises "Attempting to unscale FP16 gradients.": the scaler works, but the parameters should be FP32. A
fused optimizer unscales by itself, so there is no error, but small updates are rounded away: at a weight of
1, everything below 2**-11 times the weight.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.training_setup import (
    TrainingSetup,
    count_are,
    join_names,
)
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find FP16 parameters that are trained with a loss scaler; HD103 reports adapters."""
    found = [p for p in setup.parameters if p.trained_as_half and p.tensor.dtype is torch.float16]
    if not found or not setup.scaler_enabled or setup.has_frozen_half_base:
        return
    fused = all(parameter.group.get("fused") for parameter in found)
    yield Finding(
        code="HD102",
        severity="error",
        message=f"{count_are(len(found), 'trainable parameter')} float16: "
        f"{join_names(parameter.name for parameter in found)}.",
        subject=found[0].name,
        why="With a fused optimizer torch does not raise for FP16 parameters, but small updates are rounded "
        "away: 1 - 1e-4 is 1 in FP16."
        if fused
        else 'scaler.step() will raise "Attempting to unscale FP16 gradients.": torch rejects FP16 '
        "parameters, because small updates to them are rounded away.",
        cure=setup.half_weights_cure,
    )
