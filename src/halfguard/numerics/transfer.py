"""Move small tensors between devices without waiting, where that is safe."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return the tensor on ``device``, and wait only if that is the host.

    Asked not to block, torch returns a tensor on the host before its numbers have arrived. Between devices,
    and from the host, the streams keep the order.
    """
    return tensor.to(device, dtype or tensor.dtype, non_blocking=device.type != "cpu")
