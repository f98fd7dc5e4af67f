"""What a loss scaler refuses or warns of, before it does anything."""

from __future__ import annotations

import warnings

import torch

from halfguard.errors import UsageError


def default_device_type() -> str:
    """The accelerator of this machine, or the CPU."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device.type if device is not None else "cpu"


def warn_of_half_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Warn of float16 parameters in an optimizer that escapes torch's own refusal of them."""
    # torch refuses them in unscale_, but a fused optimizer escapes that check.
    halves = sum(
        p.dtype is torch.float16 for group in optimizer.param_groups for p in group["params"]
    )
    if halves:
        warnings.warn(
            f"{halves} of the optimizer's parameters are float16: small updates to them are lost. "
            "Wrap it in halfguard.MasterWeights, or call halfguard.upcast_trainable(model).",
            stacklevel=3,
        )


def check_device(device: str) -> None:
    """Refuse a device that is not there, where torch would only warn and switch the scaler off."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "GradScaler('cuda') was asked for, and this machine has no CUDA device.",
            cure="Leave the device out to take what is there, or pass enabled=False for FP32.",
        )


def check_bounds(floor: float, init: float, ceiling: float) -> None:
    """Refuse bounds between which the scale does not lie."""
    if not 0 < floor <= init <= ceiling:
        raise UsageError(
            f"GradScaler needs 0 < floor <= init_scale <= ceiling; got {floor:g}, {init:g}, {ceiling:g}."
        )


def check_changes(growth: float, backoff: float, interval: int, after: int, refill: str) -> None:
    """Refuse factors that do not grow or shrink, and counts that are never reached."""
    if not growth > 1 or not 0 < backoff < 1 or interval < 1 or after < 1:
        raise UsageError(
            "GradScaler needs growth_factor > 1, 0 < backoff_factor < 1, growth_interval >= 1 and "
            f"backoff_after >= 1; got {growth}, {backoff}, {interval} and {after}."
        )
    if refill not in {"applied", "growth"}:
        raise UsageError(f"GradScaler needs refill_on 'applied' or 'growth'; got {refill!r}.")
