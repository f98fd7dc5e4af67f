"""HD102: a GradScaler refuses FP16 parameters, or is bypassed and their updates are lost.

torch raises "Attempting to unscale FP16 gradients." for them: the scaler is not broken, the parameters
should be FP32. A fused optimizer unscales by itself and escapes the error; then small updates are rounded
away: at a weight of 1, everything below 2**-11 times the weight.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.subject import Held, Subject
from halfguard.diagnosis.model.wording import counted, listed
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find FP16 parameters that are trained with a loss scaler; adapters are HD103's."""
    found = [one for one in subject.half_trained if one.tensor.dtype is torch.float16]
    if not found or not subject.scales or subject.frozen_half:
        return
    fused = all(_is_fused(one) for one in found)
    yield Finding(
        code="HD102",
        severity="error",
        message=f"{counted(len(found), 'trainable parameter')} float16: {listed(o.name for o in found)}.",
        subject=found[0].name,
        why="The fused optimizer escapes torch's refusal of FP16 parameters, and small updates are "
        "rounded away: 1 - 1e-4 is 1 in half."
        if fused
        else 'scaler.step() will raise "Attempting to unscale FP16 gradients.": small updates to FP16 '
        "weights are rounded away, so torch refuses them.",
        cure=subject.half_cure,
    )


def _is_fused(held: Held) -> bool:
    return bool(held.group.get("fused"))
