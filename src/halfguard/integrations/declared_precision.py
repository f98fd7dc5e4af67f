"""The precision of a run in a framework: what was declared, and what its model runs in."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from halfguard.dist.collectives import rank
from halfguard.dist.sharded_dtypes import sharded_dtypes
from halfguard.errors import UsageError
from halfguard.formats import dtype_name
from halfguard.precision.declared_dtypes import declared_differences
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
    is_fsdp2 = getattr(accelerator, "is_fsdp2", False)  # since Accelerate 1.6
    supported = where == "NO" or where.startswith("MULTI_") or is_fsdp2
    if precision not in _PRECISIONS or not supported:
        version = " version 1" if where == "FSDP" and not is_fsdp2 else ""
        raise UsageError(
            f"The guard does not support mixed_precision={precision!r} under {where}{version}.",
            cure='Use "fp16", "bf16" or "no" with one process, DDP or FSDP2 (fsdp_version=2).',
        )


def precision_of(
    accelerator: Any,
    model: nn.Module,
    optimizers: Iterable[Optimizer] = (),
    *,
    strict: bool = False,
    rollout: Any = None,
) -> PrecisionName:
    """Return the precision that the accelerator's model runs in; tell if it is not the one asked for."""
    asked = _PRECISIONS[accelerator.mixed_precision]
    check_declared(model, optimizers, asked, strict=strict, rollout=rollout)
    if groups := sharded_dtypes(model):  # the lowest counts
        found = {_COMPUTED.get(group.computed, "fp32") for group in groups}
        return min(found, key=["fp16-mixed", "bf16-mixed", "fp32"].index)
    if asked != "fp32" and not accelerator.native_amp:
        name = accelerator.mixed_precision
        told = f"Accelerate does not run {name} on this device: the model trains in FP32."
        _tell([told], strict=strict)
        return "fp32"
    return asked


def check_declared(
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    asked: PrecisionName,
    *,
    strict: bool,
    autocasts: bool = False,
    rollout: Any = None,
) -> None:
    """Say in one line in which dtypes FSDP2 runs a model; warn of those that were not declared, or raise.

    ``autocasts`` if the framework opens autocast around a sharded model.
    """
    found = list(
        declared_differences(model, optimizers, asked, autocasts=autocasts, rollout=rollout)
    )
    if found:
        cures = dict.fromkeys(one.cure for one in found)
        _tell([one.message for one in found], strict=strict, cure=" ".join(cures))
    elif (groups := sharded_dtypes(model)) and rank() == 0:
        parts = {
            what: ", ".join(sorted({dtype_name(getattr(group, what)) for group in groups}))
            for what in ("computed", "reduced", "stored")
        }
        logger.info(
            "%s was requested; FSDP2 computes in %s, adds in %s and stores %s.",
            asked,
            *parts.values(),
        )


def _tell(differences: list[str], *, strict: bool, cure: str = "") -> None:
    """Warn of what was not declared; with ``strict`` every rank raises."""
    told = " ".join(differences)
    if strict:
        raise UsageError(
            f"strict: true is set, but the run does not use the declared dtypes. {told}", cure=cure
        )
    if rank() == 0:
        logger.warning("%s", f"{told} {cure}".rstrip())
