"""Facts about an accelerator of Accelerate, for the adapters whose frameworks train with one."""

from __future__ import annotations

import logging
from typing import Any

from halfguard.errors import UsageError
from halfguard.precision_names import PrecisionName

logger = logging.getLogger("halfguard")

_PRECISIONS: dict[str, PrecisionName] = {"fp16": "fp16-mixed", "bf16": "bf16-mixed", "no": "fp32"}


def raise_if_unsupported(accelerator: Any) -> None:
    """Raise for engines that scale losses and step optimizers by themselves, and for FP8."""
    precision, where = accelerator.mixed_precision, accelerator.distributed_type.value
    if precision not in _PRECISIONS or not (where == "NO" or where.startswith("MULTI_")):
        raise UsageError(
            f"The guard does not run with mixed_precision={precision!r} under {where}.",
            cure='Use "fp16", "bf16" or "no" with one process or DDP; for FSDP2 halfguard.Guard.',
        )


def precision_of(accelerator: Any) -> PrecisionName:
    """Return the precision that the accelerator's models run in; say if it is not the one asked for."""
    asked: str = accelerator.mixed_precision
    if asked != "no" and not accelerator.native_amp:
        logger.warning(
            "Accelerate does not run %s on this device: the model trains in FP32.", asked
        )
        return "fp32"
    return _PRECISIONS[asked]


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return torch's optimizer inside of the accelerator's."""
    while hasattr(optimizer, "accelerator_state"):
        optimizer = optimizer.optimizer
    return optimizer
