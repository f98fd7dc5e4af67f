"""HD104: weights in 16 bits are updated in 16 bits.

A weight of 1 has its neighbours 2**-11 below and 2**-10 above it in FP16, and 2**-8 and 2**-7 in BF16.
Updates smaller than half of that are lost at every step, for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.subject import Subject
from halfguard.diagnosis.model.wording import counted, listed, spoken
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find half weights without masters; those that a scaler refuses are HD102's."""
    found = [
        one
        for one in subject.half_trained
        if not (subject.scales and one.tensor.dtype is torch.float16)
    ]
    if not found or subject.frozen_half:
        return
    dtype = found[0].tensor.dtype
    yield Finding(
        code="HD104",
        severity="error" if dtype is torch.float16 else "warning",
        message=f"{counted(len(found), 'trainable parameter')} {spoken(dtype)}, "
        f"without FP32 master weights: {listed(one.name for one in found)}.",
        subject=found[0].name,
        why=f"At a weight of 1, an update below {torch.finfo(dtype).eps / 4:.1g} is rounded away.",
        cure=subject.half_cure,
    )
