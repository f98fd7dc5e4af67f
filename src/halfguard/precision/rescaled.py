"""Matrix products whose results leave the range of half, computed in half all the same.

Each row of the first factor and each column of the second are divided by a power of two, which changes no
digit, so that no number is larger than 1. The product is computed in half, widened to FP32, and multiplied by
the powers. So it stays in 16 bits, and cannot overflow below 65504 terms. Its consumer must take FP32, as a
norm or a residual connection does under autocast: what is cast to half again overflows there.

The gradients are those of the product in half.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def can_be_rescaled(module: nn.Module) -> bool:
    """Return whether a module is a plain linear layer, whose forward nobody but an island has replaced."""
    forward: Any = module.forward
    if isinstance(forward, functools.partial):
        forward = forward.args[-1] if forward.args else None
    is_plain = getattr(forward, "__func__", None) is nn.Linear.forward
    return isinstance(module, nn.Linear) and is_plain


def run_rescaled(
    accelerator: str,
    layer: Any,
    forward: Callable[[Tensor], Tensor],
    /,
    input: Tensor,  # noqa: A002 - as in torch
) -> Tensor:
    """Return a linear layer's result in FP32, multiplied in the dtype of autocast; without it as ever.

    Autocast of ``accelerator`` may be emulated for tensors of the CPU.
    """
    dtype = lowered_dtype(input.device.type, accelerator)
    if dtype is None:
        return forward(input)
    out = rescaled_product(input if input.dim() > 1 else input[None], layer.weight.T, dtype)
    out = out[0] if input.dim() == 1 else out
    return out if layer.bias is None else out + layer.bias


def lowered_dtype(*device_types: str) -> torch.dtype | None:
    """Return the dtype of the first device's autocast that is on, or None."""
    on = (kind for kind in device_types if torch.is_autocast_enabled(kind))
    return next((torch.get_autocast_dtype(kind) for kind in on), None)


def rescaled_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``left @ right`` in FP32, multiplied in ``dtype``; both have at least two dimensions."""
    out: Tensor = _RescaledProduct.apply(left, right, dtype)  # type: ignore[no-untyped-call]
    return out


def _divide(factor: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return a factor divided by powers of two, and their exponents."""
    wide = factor.float()
    exponents = torch.frexp(wide.abs().amax(dim, keepdim=True)).exponent
    return torch.ldexp(wide, -exponents).to(factor.dtype), exponents


class _RescaledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        low, other = left.to(dtype), right.to(dtype)
        ctx.save_for_backward(low, other)
        ctx.dtypes = left.dtype, right.dtype
        rows, by_row = _divide(low, -1)
        columns, by_column = _divide(other, -2)
        return torch.ldexp(torch.ldexp((rows @ columns).float(), by_row), by_column)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        low = grad.to(left.dtype)
        needs_left, needs_right, _ = ctx.needs_input_grad
        of_left = (low @ right.mT).sum_to_size(left.shape).to(ctx.dtypes[0]) if needs_left else None
        if right.dim() == 2:  # one product over all rows, as of a linear layer
            left, low = left.reshape(-1, left.shape[-1]), low.reshape(-1, low.shape[-1])
        of_right = (
            (left.mT @ low).sum_to_size(right.shape).to(ctx.dtypes[1]) if needs_right else None
        )
        return of_left, of_right, None
