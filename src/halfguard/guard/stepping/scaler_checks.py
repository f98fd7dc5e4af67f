"""Checks of a loss scaler's arguments and optimizers, made before it is used."""

from __future__ import annotations

import warnings

import torch

from halfguard.errors import UsageError
from halfguard.step.parameters import parameters_of


def default_device_type() -> str:
    """Return the accelerator of this machine, or the CPU."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device.type if device is not None else "cpu"


def warn_of_half_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Warn of float16 parameters: torch raises in ``unscale_``, but fused optimizers do not call it."""
    halves = sum(p.dtype is torch.float16 for p in parameters_of(optimizer))
    if halves:
        warnings.warn(
            f"{halves} of the optimizer's parameters are float16: small updates to them are lost. "
            "Wrap it in halfguard.MasterWeights, or call halfguard.upcast_trainable(model).",
            stacklevel=3,
        )


def check_device(device: str) -> None:
    """Raise if the device is missing; torch would only warn and disable the scaler."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "GradScaler('cuda') was requested, but this machine has no CUDA device.",
            cure="Leave the device out to use the one of this machine, or pass enabled=False for FP32.",
        )


def check_bounds(floor: float, init: float, ceiling: float) -> None:
    """Raise if the initial scale is outside its bounds."""
    if not 0 < floor <= init <= ceiling:
        raise UsageError(
            f"GradScaler needs 0 < floor <= init_scale <= ceiling; got {floor:g}, {init:g}, {ceiling:g}."
        )


def check_changes(growth: float, backoff: float, interval: int) -> None:
    """Raise if a factor does not grow or shrink the scale, or the interval is below 1."""
    if not growth > 1 or not 0 < backoff < 1 or interval < 1:
        raise UsageError(
            "GradScaler needs growth_factor > 1, 0 < backoff_factor < 1 and growth_interval >= 1; "
            f"got {growth}, {backoff} and {interval}."
        )
