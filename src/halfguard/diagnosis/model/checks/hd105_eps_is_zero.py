"""HD105: the optimizer's eps is 0 in the dtype of its parameters, and 0/0 is NaN.

Adam divides by ``sqrt(v) + eps`` in the parameter's dtype. The smallest FP16 number is 2**-24 (6e-8), so the
usual 1e-8 becomes 0; and v, a square, is 0 for gradients below 2e-4. Fused kernels compute in FP32, but they
store v in FP16, where (1 - beta2) * g**2 is 0 for gradients below 5e-3. Then v never grows, and once its bias
is no longer corrected every step is 1 / sqrt(1 - beta2) times as long, 32 times for Adam's 0.999.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from halfguard.diagnosis.model.measured_precision import dtype_name
from halfguard.diagnosis.model.training_setup import (
    MeasuredGradients,
    OptimizerParameter,
    TrainingSetup,
    join_names,
)
from halfguard.records.finding import Finding

_MOST = 0.5  # of the gradients that are not 0


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find parameters whose group has an eps that is 0 in their dtype."""
    found = [parameter for parameter in setup.trained_in_half if _has_zero_eps(parameter)]
    if not found:
        yield from _check_fused(setup)
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


def _check_fused(setup: TrainingSetup) -> Iterator[Finding]:
    """Find fused Adams whose second moment stays 0 for most of the measured gradients."""
    found = [one for one in setup.trained_in_half if _has_zero_eps(one, fused=True)]
    share = _share_of_lost_squares(found, setup.gradients)
    if share < _MOST:
        return
    factor = (1 - found[0].group["betas"][1]) ** -0.5
    yield Finding(
        code="HD105",
        severity="error",
        message=f"{type(found[0].optimizer).__name__} stores squared gradients in float16, and "
        f"{share:.0%} of them are 0 there: {join_names(one.name for one in found)}.",
        subject=found[0].name,
        why=f"Updates are divided by their root: they become up to {factor:.0f} times as long as asked for.",
        cure=setup.half_weights_cure,
    )


def _share_of_lost_squares(
    found: Sequence[OptimizerParameter], gradients: MeasuredGradients | None
) -> float:
    """Return the share of gradients, of those that are not 0, whose square leaves no trace in FP16."""
    there = lost = 0
    for one in found:
        gradient = None if gradients is None else gradients.of.get(id(one.weight))
        if gradient is not None:
            added = (1 - one.group["betas"][1]) * gradient.float().square()
            there += int(gradient.count_nonzero())
            lost += int(((added.half() == 0) & (gradient != 0)).sum())
    return lost / there if there else 0.0


def _has_zero_eps(parameter: OptimizerParameter, *, fused: bool = False) -> bool:
    eps, betas = parameter.group.get("eps"), parameter.group.get("betas")
    if not isinstance(eps, float) or bool(parameter.group.get("fused")) != fused:
        return False
    if fused and (betas is None or not 0 <= betas[1] < 1):
        return False
    return float(torch.tensor(eps, dtype=parameter.tensor.dtype)) == 0.0
