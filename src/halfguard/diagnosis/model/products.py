"""A matrix product as the dispatcher shows it: its dtype, its work, and whether training depends on it.

Counting calls would make a head of a thousand multiplications the equal of a backbone of a billion, so
every product is weighed by its arithmetic, which the shapes of its operands give for nothing.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# The operations whose arithmetic is a matrix product, on any device: those that 16 bits are meant for.
_PRODUCT = re.compile(
    r"(add|b|addb|baddb|_grouped_|_scaled_)?mm|_addmm_activation|(add)?mv|.*convolution.*|.*_rnn.*"
    r"|.*attention.*"
)
# torch counts attention on accelerators only; on a CPU the arguments and the arithmetic are the same.
_SAME_WORK = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        torch.ops.aten._scaled_dot_product_flash_attention
    )
}
_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Around:
    """What surrounds a call: the module, and the state of autocast."""

    module: str | None = None  # empty in the model's own forward, None outside of it, as in a loss
    autocast: torch.dtype | None = None
    island: bool = False  # autocast is off within an autocast: somebody meant it
    attention: torch.dtype | None = None  # the 16 bits that a call of attention was to run in


@dataclass(frozen=True)
class Product:
    """One matrix product: its operands' dtype, its arithmetic, and where it ran."""

    dtype: torch.dtype
    around: Around
    work: float
    trains: bool  # whether a gradient will pass through it

    @property
    def module(self) -> str | None:
        """The module in which it ran; None outside of the model."""
        return self.around.module


def product_of(func: Any, args: Any, kwargs: Any, result: Any, around: Around) -> Product | None:
    """The product that a call in the dispatcher was, if it was one."""
    packet = func.overloadpacket
    if not _PRODUCT.fullmatch(packet.__name__):
        return None
    operands = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    floating = [tensor for tensor in operands if tensor.is_floating_point()]
    if not floating:
        return None
    formula = flop_registry.get(_SAME_WORK.get(packet, packet))
    if formula is None or any(tensor.is_nested for tensor in operands):
        work = _estimate(floating, result)
    else:
        work = float(formula(*args, **kwargs, out_val=result))
    if torch.is_grad_enabled():
        trains = any(tensor.requires_grad for tensor in operands)
    else:
        trains = _within_function()
    dtype = floating[0].dtype
    if dtype is torch.float32 and around.attention is not None:
        dtype = around.attention
    return Product(dtype, around, work, trains)


def _estimate(operands: list[Tensor], result: Any) -> float:
    """From the sizes alone: mk, kn and mn make 2mkn, exact for one product and near for a few."""
    outputs = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    sizes = sorted((tensor.numel() for tensor in operands), reverse=True)
    return 2 * math.sqrt(math.prod([*sizes[:2], *outputs[:1]]))


def _within_function() -> bool:
    """Whether gradients are off only because this is inside an ``autograd.Function`` that will give them.

    Such a function, be it somebody's own linear layer or a reentrant checkpoint, runs its ``forward`` without
    gradients and has a ``backward`` for them: if anything that it was given needs one.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is _APPLY and any(map(_needs_gradient, frame.f_locals["args"])):
            return True
    return False


def _needs_gradient(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.requires_grad
