"""The precision of an accelerator: what it was asked for, and what its model computes in."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from halfguard.dist.collectives import rank
from halfguard.dist.sharded_dtypes import ShardedDtypes, sharded_dtypes
from halfguard.errors import UsageError
from halfguard.precision_names import PrecisionName

logger = logging.getLogger("halfguard")

_PRECISIONS: dict[str, PrecisionName] = {"fp16": "fp16-mixed", "bf16": "bf16-mixed", "no": "fp32"}
_COMPUTED: dict[torch.dtype, PrecisionName] = {
    torch.float16: "fp16-mixed",
    torch.bfloat16: "bf16-mixed",
}


def raise_if_unsupported(accelerator: Any) -> None:
    """Raise for engines that scale losses and step optimizers by themselves, and for FP8."""
    precision, where = accelerator.mixed_precision, accelerator.distributed_type.value
    supported = where == "NO" or where.startswith("MULTI_") or accelerator.is_fsdp2
    if precision not in _PRECISIONS or not supported:
        version = " version 1" if where == "FSDP" and not accelerator.is_fsdp2 else ""
        raise UsageError(
            f"The guard does not run with mixed_precision={precision!r} under {where}{version}.",
            cure='Use "fp16", "bf16" or "no" with one process, DDP or FSDP2 (fsdp_version=2).',
        )


def precision_of(accelerator: Any, model: nn.Module) -> PrecisionName:
    """Return the precision that the accelerator's model runs in; say if it is not the one asked for."""
    asked: str = accelerator.mixed_precision
    groups = sharded_dtypes(model)
    if groups:
        return _sharded_precision(asked, groups)
    if asked != "no" and not accelerator.native_amp:
        logger.warning(
            "Accelerate does not run %s on this device: the model trains in FP32.", asked
        )
        return "fp32"
    return _PRECISIONS[asked]


def _sharded_precision(asked: str, groups: list[ShardedDtypes]) -> PrecisionName:
    """Return the lowest precision in which FSDP2 computes a group, whatever was asked for."""
    found = {_COMPUTED.get(group.computed, "fp32") for group in groups}
    runs = min(found, key=["fp16-mixed", "bf16-mixed", "fp32"].index)
    if runs != _PRECISIONS[asked] and rank() == 0:
        logger.warning(
            "mixed_precision=%r was asked for, and FSDP2's policy computes in %s: the policy counts.",
            asked,
            runs,
        )
    narrow = next((group for group in groups if group.reduced == torch.float16), None)
    if narrow is not None and rank() == 0:
        logger.warning(
            "Ranks add gradients of %s in float16, where small ones are lost and sums overflow. Call "
            "halfguard.integrations.accelerate.reduce_in_fp32(accelerator) before prepare() or train().",
            narrow.module or "the whole model",
        )
    return runs
