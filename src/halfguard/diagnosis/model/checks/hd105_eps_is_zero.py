"""HD105: the optimizer's eps is 0 in the dtype of its parameters, and 0/0 is NaN.

Adam divides by ``sqrt(v) + eps`` in the parameter's dtype. The smallest FP16 number is 2**-24 (6e-8), so the
usual 1e-8 becomes 0; and v, a square, is 0 for gradients below 2e-4. Fused kernels compute in FP32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.measured_precision import dtype_name
from halfguard.diagnosis.model.training_setup import OptimizerParameter, TrainingSetup, join_names
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find parameters whose group has an eps that is 0 in their dtype."""
    found = [parameter for parameter in setup.trained_in_half if _has_zero_eps(parameter)]
    if not found:
        return
    eps, dtype = found[0].group["eps"], dtype_name(found[0].tensor.dtype)
    yield Finding(
        code="HD105",
        severity="error",
        message=f"{type(found[0].optimizer).__name__}'s eps={eps:g} is 0 in {dtype}, the dtype of "
        f"{join_names(parameter.name for parameter in found)}.",
        subject=found[0].name,
        why="Where the squared gradient underflows to 0, the update is 0 / 0: NaN after the first step.",
        cure=setup.half_weights_cure,
    )


def _has_zero_eps(parameter: OptimizerParameter) -> bool:
    eps = parameter.group.get("eps")
    if not isinstance(eps, float) or parameter.group.get("fused"):
        return False
    return float(torch.tensor(eps, dtype=parameter.tensor.dtype)) == 0.0
