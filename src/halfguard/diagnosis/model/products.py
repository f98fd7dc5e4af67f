"""A matrix product as the dispatcher sees it: its dtype, its FLOPs, and whether a gradient passes through it.

Counting calls would give a head of a thousand multiplications the same weight as a backbone of a billion.
So every product is weighted by its FLOPs, which follow from the shapes of its operands.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
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


@dataclass(frozen=True)
class CallContext:
    """The surroundings of a call: the module, and the state of autocast."""

    module: str | None = None  # "" in the model's own forward, None outside, as in a loss
    autocast: torch.dtype | None = None
    island: bool = False  # autocast was switched off inside an autocast region
    attention_dtype: torch.dtype | None = None  # 16-bit dtype requested of an attention call


@dataclass(frozen=True)
class Product:
    """One matrix product: the dtype of its operands, its FLOPs, and where it ran."""

    dtype: torch.dtype
    context: CallContext
    flops: float
    passes_gradient: bool  # in the backward pass

    @property
    def module(self) -> str | None:
        return self.context.module


def as_product(
    func: Any, args: Any, kwargs: Any, result: Any, context: CallContext
) -> Product | None:
    """Return a call in the dispatcher as a product, or None if it is not one."""
    packet = func.overloadpacket
    if not _PRODUCT.fullmatch(packet.__name__):
        return None
    operands = list(tensors_in(args))
    floating = [tensor for tensor in operands if tensor.is_floating_point()]
    if not floating:
        return None
    formula = flop_registry.get(_SAME_FLOPS.get(packet, packet))
    if formula is None or any(tensor.is_nested for tensor in operands):
        flops = _estimate_flops(floating, result)
    else:
        flops = float(formula(*args, **kwargs, out_val=result))
    if torch.is_grad_enabled():
        passes = any(tensor.requires_grad for tensor in operands)
    else:
        passes = _inside_autograd_function()
    dtype = floating[0].dtype
    if dtype is torch.float32 and context.attention_dtype is not None:
        dtype = context.attention_dtype
    return Product(dtype, context, flops, passes)


def _estimate_flops(operands: list[Tensor], result: Any) -> float:
    """Estimate 2mkn from the sizes mk, kn and mn: exact for one product, close for a few in one call."""
    outputs = [tensor.numel() for tensor in tensors_in(result)]
    sizes = sorted((tensor.numel() for tensor in operands), reverse=True)
    return 2 * math.sqrt(math.prod([*sizes[:2], *outputs[:1]]))


def _inside_autograd_function() -> bool:
    """Return whether an ``autograd.Function`` is running, one of whose arguments needs a gradient.

    Such a function (a custom linear layer, a reentrant checkpoint) runs its ``forward`` with gradients off,
    but its ``backward`` computes them. ``apply`` has no Python frame in every version of torch, so the frame
    of ``forward`` is looked for. It shows arguments as they are now: a ``forward`` without ``ctx`` that has
    replaced each of them that needs a gradient is taken for one without gradients.
    """
    forwards = _forward_codes()
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code in forwards and any(map(_needs_gradient, _arguments(frame))):
            return True
        frame = frame.f_back
    return False


def _forward_codes() -> set[CodeType]:
    """Return the code of ``forward`` of every ``autograd.Function`` that exists now."""
    found, classes = set(), [torch.autograd.Function]
    while classes:
        subclasses = classes.pop().__subclasses__()
        classes += subclasses
        found |= {getattr(cls.forward, "__code__", None) for cls in subclasses}
    return {code for code in found if code is not None}


def _arguments(frame: FrameType) -> Iterator[object]:
    """Yield the positional arguments of a call."""
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount]:
        yield frame.f_locals.get(name)
    if code.co_flags & inspect.CO_VARARGS:
        yield from frame.f_locals.get(
            code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ()
        )


def _needs_gradient(argument: object) -> bool:
    if isinstance(argument, FunctionCtx):
        return any(getattr(argument, "needs_input_grad", ()))
    return isinstance(argument, Tensor) and argument.requires_grad
