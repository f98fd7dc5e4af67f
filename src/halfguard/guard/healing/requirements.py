"""Models that the guard cannot heal, refused at construction."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from halfguard.dist.wrapping import is_sharded
from halfguard.errors import UsageError
from halfguard.precision.modes import HALF_DTYPES


def raise_if_unhealable(model: nn.Module) -> None:
    """Raise if trainable half weights are wrapped for several ranks: an island would make them FP32."""
    wrapped = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    if not wrapped and not is_sharded(model):
        return
    half = [n for n, p in model.named_parameters() if p.dtype in HALF_DTYPES and p.requires_grad]
    if half:
        wrapper = "DDP" if wrapped else "FSDP2"
        raise UsageError(
            f"heal cannot be used here: {len(half)} trainable parameters are stored in 16 bits, the first is "
            f"{half[0]}, and {wrapper} has fixed their dtype. An island would make some of them FP32.",
            cure="Use precision 'fp16-mixed' with FP32 weights, or leave heal out and give the islands as a "
            "plan before the model is wrapped.",
        )
