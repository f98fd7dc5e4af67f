"""Weights, optimizer state and statistics that are kept in 16 bits while they are trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from halfguard.catalogue import Severity
from halfguard.diagnosis.model.forward import loss_in
from halfguard.diagnosis.model.training_setup import (
    MeasuredGradients,
    OptimizerParameter,
    TrainingSetup,
    count_are,
    join_names,
)
from halfguard.diagnosis.model.updates import MUCH, lost_share, needs_gradients
from halfguard.formats import dtype_name
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.finding import Finding

_MOST = 0.5  # of the gradients that are not 0


def check_hg401(setup: TrainingSetup) -> Iterator[Finding]:
    """Find FP16 parameters that are trained with a loss scaler; HG401 reports adapters.

    torch raises "Attempting to unscale FP16 gradients.": the scaler works, but the parameters should be FP32.
    A fused optimizer unscales by itself, so there is no error, but small updates are rounded away: at a
    weight of 1, everything below 2**-11 times the weight.
    """
    found = [p for p in setup.parameters if p.trained_as_half and p.tensor.dtype is torch.float16]
    if not found or not setup.scaler_enabled or setup.has_frozen_half_base:
        return
    fused = all(parameter.group.get("fused") for parameter in found)
    yield Finding(
        code="HG401",
        severity="error",
        message=f"{count_are(len(found), 'trainable parameter')} float16: "
        f"{join_names(parameter.name for parameter in found)}.",
        subject=found[0].name,
        why=(
            "With a fused optimizer, torch does not raise for FP16 parameters, but small updates are "
            "rounded away: 1 - 1e-4 is 1 in FP16."
        )
        if fused
        else (
            'scaler.step() will raise "Attempting to unscale FP16 gradients.": torch rejects FP16 '
            "parameters because small updates to them are rounded away."
        ),
        cure=setup.half_weights_cure,
    )


def check_hg401_adapters(setup: TrainingSetup) -> Iterator[Finding]:
    """Find trained half parameters in a model that also has frozen half parameters.

    The base may stay in half: it is not updated, so nothing is lost. The adapters are updated, and in half
    they lose every small update; with a GradScaler, FP16 adapters raise an error.
    """
    found = setup.trained_in_half
    if not found or not setup.has_frozen_half_base:
        return
    dtype = dtype_name(found[0].tensor.dtype)
    scaler = ' A GradScaler raises "Attempting to unscale FP16 gradients."'
    yield Finding(
        code="HG401",
        severity="error",
        message=(
            f"{count_are(len(found), 'trained parameter')} {dtype}, on a frozen 16-bit base: "
            f"{join_names(one.name for one in found)}."
        ),
        subject=found[0].name,
        why="Small updates to them are rounded away." + (scaler if dtype == "float16" else ""),
        cure=setup.half_weights_cure,
    )


def check_hg402(setup: TrainingSetup) -> Iterator[Finding]:
    """Find half weights without master weights; HG401 reports those for which a scaler raises.

    The numbers next to 1 are 2**-11 below and 2**-10 above it in FP16, and 2**-8 and 2**-7 in BF16. At a
    weight of 1, updates smaller than half of that are lost at every step. It is a problem if the updates of
    this optimizer are that small, and otherwise a note: with a high learning rate half weights may train
    well.
    """
    found = [
        one
        for one in setup.trained_in_half
        if not (setup.scaler_enabled and one.tensor.dtype is torch.float16)
    ]
    if not found or setup.has_frozen_half_base:
        return
    dtype, share = found[0].tensor.dtype, lost_share(found, setup.gradients)
    yield Finding(
        code="HG402",
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
        return f" At this learning rate about {lost} of the updates is rounded away (by magnitude)."
    optimizer = found[0].optimizer
    if optimizer is None:
        return " How many updates are lost depends on the optimizer."
    if _has_loss(setup) or not any(map(needs_gradients, found)):
        return f" It is unknown how many updates are lost with {type(optimizer).__name__}."
    return (
        " How many updates are lost depends on the gradients. Pass loss and batch to measure this."
    )


def _has_loss(setup: TrainingSetup) -> bool:
    loss = None if setup.forward is None else loss_in(setup.forward.result)
    return loss is not None and loss.numel() == 1


def check_hg403(setup: TrainingSetup) -> Iterator[Finding]:
    """Find parameters whose group has an eps that is 0 in their dtype.

    Adam divides by ``sqrt(v) + eps`` in the parameter's dtype. The smallest FP16 number is 2**-24 (6e-8), so
    the usual 1e-8 becomes 0; and v, a square, is 0 for gradients below 2e-4. Fused kernels compute in FP32,
    but they store v in FP16, where (1 - beta2) * g**2 is 0 for gradients below 5e-3. Then v never grows, and
    once its bias is no longer corrected every step is 1 / sqrt(1 - beta2) times as long, 32 times for Adam's
    0.999.
    """
    found = [parameter for parameter in setup.trained_in_half if _has_zero_eps(parameter)]
    if not found:
        yield from _check_fused(setup)
        return
    eps, dtype = found[0].group["eps"], dtype_name(found[0].tensor.dtype)
    yield Finding(
        code="HG403",
        severity="error",
        message=f"{type(found[0].optimizer).__name__}'s eps={eps:g} rounds to 0 in {dtype}, the dtype of "
        f"{join_names(parameter.name for parameter in found)}.",
        subject=found[0].name,
        why=(
            "Where the squared gradient underflows to 0, the update is 0 / 0, which is NaN after the first "
            "step."
        ),
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
        code="HG403",
        severity="error",
        message=(
            f"{type(found[0].optimizer).__name__} stores squared gradients in float16, where {share:.0%} of "
            f"them are 0: {join_names(one.name for one in found)}."
        ),
        subject=found[0].name,
        why=(
            f"Updates are divided by the square root of these values, so they become up to {factor:.0f} "
            "times larger than configured."
        ),
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


def check_hd108(setup: TrainingSetup) -> Iterator[Finding]:
    """Find normalisation layers with half running statistics that training updates.

    A layer in eval() inside a model in train() is frozen on purpose. A model that is in eval() as a whole was
    only just loaded, and training has not started.

    They are moving averages, ``0.9 * old + 0.1 * new``: in half the small part is rounded away, and a
    variance above 65504 is infinite in FP16. Training is not affected, but evaluation gives wrong results.
    """
    model = setup.model
    if model is None:
        return
    halves = {
        name: module for name, module in model.named_modules() if _has_half_statistics(module)
    }
    found = [name for name, module in halves.items() if module.training or not model.training]
    if found:
        yield Finding(
            code="HD108",
            message=f"BatchNorm running statistics are stored in 16-bit precision: {join_names(found)}.",
            subject=found[0],
            why=(
                "A 16-bit moving average loses small increments, and a variance above 65504 is Inf in FP16, "
                "so the model returns different results in eval() than in training."
            ),
            cure="for module in model.modules():\n"
            "    if isinstance(module, torch.nn.modules.batchnorm._NormBase): module.float()",
        )


def _has_half_statistics(module: nn.Module) -> bool:
    variance = module.running_var if isinstance(module, _NormBase) else None
    return isinstance(variance, Tensor) and variance.dtype in HALF_DTYPES
