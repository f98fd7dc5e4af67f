"""Matrix products whose results leave the range of half, computed in half all the same.

Each row of the first factor and each column of the second are divided by a power of two, which changes no
digit, so that no number is larger than 1. The product is computed in half, widened to FP32, and multiplied by
the powers. So it stays in 16 bits, and cannot overflow below 65504 terms. Its consumer must take FP32, as a
norm or a residual connection does under autocast: what is cast to half again overflows there.

The gradients are computed in half in the same way. A factor in FP32 may itself be beyond half.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SETTING = "_island_setting"  # of a module: the accelerator, ..., and the forward that was replaced


def can_be_rescaled(module: nn.Module) -> bool:
    """Return whether a module is a plain linear layer, whose forward nobody but an island has replaced."""
    own: Any = vars(module).get("forward")
    own = vars(module)[SETTING][-1] if SETTING in vars(module) else own
    if isinstance(own, functools.partial):  # of lines
        own = own.args[-1] if own.args else None
        is_plain = getattr(own, "__func__", None) is nn.Linear.forward
    else:
        is_plain = own is None
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward and is_plain


def run_rescaled(self: Any, /, input: Tensor) -> Tensor:  # noqa: A002 - as in torch
    """Return a linear layer's result in FP32, multiplied in the dtype of autocast; without it as ever.

    Autocast of the accelerator may be emulated for tensors of the CPU.
    """
    dtype = lowered_dtype(input.device.type, self._island_setting[0])
    if dtype is None:
        return run_as_before(self, input)  # type: ignore[no-any-return]
    out = rescaled_product(input if input.dim() > 1 else input[None], self.weight.T, dtype)
    out = out[0] if input.dim() == 1 else out
    return out if self.bias is None else out + self.bias


def run_as_before(island: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the forward that an island has replaced."""
    original = island._island_setting[-1]
    if original is None:
        return type(island).forward(island, *args, **kwargs)
    return original(*args, **kwargs)


def lowered_dtype(*device_types: str) -> torch.dtype | None:
    """Return the dtype of the first device's autocast that is on, or None."""
    on = (kind for kind in device_types if torch.is_autocast_enabled(kind))
    return next((torch.get_autocast_dtype(kind) for kind in on), None)


def rescaled_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``left @ right`` in FP32, multiplied in ``dtype``; both have at least two dimensions."""
    out: Tensor = _RescaledProduct.apply(left, right, dtype)  # type: ignore[no-untyped-call]
    return out


class _RescaledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        rows, by_row = _divide(left, -1, dtype)
        columns, by_column = _divide(right, -2, dtype)
        ctx.save_for_backward(rows, by_row, columns, by_column)
        ctx.like = left.dtype, left.shape, right.dtype, right.shape
        return torch.ldexp(torch.ldexp((rows @ columns).float(), by_row), by_column)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, by_row, columns, by_column = ctx.saved_tensors
        needs_left, needs_right, _ = ctx.needs_input_grad
        left_dtype, left_shape, right_dtype, right_shape = ctx.like
        of_left = of_right = None
        if needs_left:
            low, power = _multiply(grad, by_column, -1, rows.dtype)
            of_left = torch.ldexp((low @ columns.mT).float(), power)
            of_left = of_left.sum_to_size(left_shape).to(left_dtype)
        if needs_right:
            if columns.dim() == 2:  # one product over all rows, as of a linear layer
                rows, by_row, grad = (t.reshape(-1, t.shape[-1]) for t in (rows, by_row, grad))
            low, power = _multiply(grad, by_row, -2, rows.dtype)
            of_right = torch.ldexp((rows.mT @ low).float(), power)
            of_right = of_right.sum_to_size(right_shape).to(right_dtype)
        return of_left, of_right, None


def _divide(factor: Tensor, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a factor in half, divided by powers of two, and their exponents."""
    wide = factor.float()
    exponents = torch.frexp(wide.abs().amax(dim, keepdim=True)).exponent
    return torch.ldexp(wide, -exponents).to(dtype), exponents


def _multiply(
    grad: Tensor, exponents: Tensor, dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return a gradient in half, multiplied by powers of two but for the largest one, and that exponent.

    Each matrix of a batch has its own: a head of attention that is small beside another one keeps its digits.
    """
    empty = not exponents.numel()
    largest = exponents.new_zeros(()) if empty else exponents.amax(dim, keepdim=True)
    return torch.ldexp(grad.float(), exponents - largest).to(dtype), largest
