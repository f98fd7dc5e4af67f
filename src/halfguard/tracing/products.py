"""The matrix products among the operations of a step, and their FLOPs."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from halfguard.step.nested import tensors_in

# Operations that are matrix products on any device; these gain from 16 bits.
_PRODUCT = re.compile(
    r"(add|b|addb|baddb|_grouped_|_scaled_)?mm|_addmm_activation|(add)?mv|.*convolution.*|.*_rnn.*"
    r"|.*attention.*"
)
# torch counts FLOPs of attention on accelerators only; the CPU kernel has the same arguments and FLOPs.
_SAME_FLOPS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        torch.ops.aten._scaled_dot_product_flash_attention
    )
}


def product_flops(func: Any, args: Any, kwargs: Any, result: Any) -> float | None:
    """Return the FLOPs of a call in the dispatcher; None if it is no matrix product of floating numbers."""
    packet = func.overloadpacket
    if not _PRODUCT.fullmatch(packet.__name__):
        return None
    operands = list(tensors_in(args))
    floating = [tensor for tensor in operands if tensor.is_floating_point()]
    if not floating:
        return None
    formula = flop_registry.get(_SAME_FLOPS.get(packet, packet))
    if formula is None or any(tensor.is_nested for tensor in operands):
        return _estimate_flops(floating, result)
    return float(formula(*args, **kwargs, out_val=result))


def _estimate_flops(operands: list[Tensor], result: Any) -> float:
    """Estimate 2mkn from the sizes mk, kn and mn: exact for one product, close for a few in one call."""
    outputs = [tensor.numel() for tensor in tensors_in(result)]
    sizes = sorted((tensor.numel() for tensor in operands), reverse=True)
    return 2 * math.sqrt(math.prod([*sizes[:2], *outputs[:1]]))
