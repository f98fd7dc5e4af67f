"""HD105: the optimizer's eps is 0 in the dtype of its parameters, and 0/0 is NaN.

Adam divides by ``sqrt(v) + eps`` in the parameter's dtype. FP16 has nothing below 2**-24 (6e-8), so the
usual 1e-8 is 0 there; and v, a square, vanishes for gradients below 2e-4. Fused kernels compute in FP32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.subject import Held, Subject
from halfguard.diagnosis.model.wording import listed, spoken
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find groups whose eps does not survive the dtype of their parameters."""
    found = [one for one in subject.half_trained if _vanishes(one)]
    if not found:
        return
    eps, dtype = found[0].group["eps"], spoken(found[0].tensor.dtype)
    yield Finding(
        code="HD105",
        severity="error",
        message=f"{type(found[0].optimizer).__name__}'s eps={eps:g} is 0 in {dtype}, the dtype of "
        f"{listed(one.name for one in found)}.",
        subject=found[0].name,
        why="A parameter whose squared gradient vanishes is divided by 0: NaN after the first step.",
        cure=subject.half_cure,
    )


def _vanishes(held: Held) -> bool:
    eps = held.group.get("eps")
    if not isinstance(eps, float) or held.group.get("fused"):
        return False
    return float(torch.tensor(eps, dtype=held.tensor.dtype)) == 0.0
