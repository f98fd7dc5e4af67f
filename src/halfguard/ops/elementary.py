"""log, sqrt, rsqrt, exp and division that stay finite on every finite input.

Each function has a point where its value or slope leaves every format: log and rsqrt at 0, sqrt's
slope at 0, exp beyond log(largest), a/b around b = 0. The usual remedy is to add an eps. It shifts
every result to protect one, and has no effect in half, where 1e-8 is 0.0. Here the cap is at the
edge of what the input's dtype can express, so *every* value inside keeps its exact result:

    log(x)    x ≤ 0:            log(t), t the smallest subnormal of the dtype
    sqrt(x)   x ≤ 0:            0
    rsqrt(x)  x ≤ 0:            1/sqrt(t)
    exp(x)    x > log(largest): largest
    a / b     b = 0, or |a / b| > largest:  a / ±t, limited to ±largest; 0 / 0 = 0

Beyond a cap the result is a constant and its gradient is 0. Inside, the gradient is the true one.
If that exceeds the dtype it becomes inf, so that the loss scaler sees it, and never NaN. The caps
are for finite inputs: NaN stays NaN, and exp(inf) and inf / b stay infinite; only -inf counts as
x ≤ 0.

A cap replaces the *input* of the function as well as the output. Replacing only the output would
leave 0 * inf = NaN in the backward pass.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from halfguard.ops._dtypes import (
    broadcast,
    largest_finite,
    smallest_subnormal,
    widen,
    working_dtype,
)
from halfguard.ops.unary import UnaryOp


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm; log(smallest subnormal) for x ≤ 0."""
    wide = widen(x)
    capped = wide <= 0
    result = wide.masked_fill(capped, 1.0).log()
    return result.masked_fill(capped, math.log(smallest_subnormal(x.dtype))).to(x.dtype)


def log_reference(x: Tensor) -> Tensor:
    """Compute log in float64."""
    return x.double().clamp(min=smallest_subnormal(x.dtype)).log()


def log_derivative(x: Tensor) -> Tensor:
    """Return 1/x, and 0 below the cap."""
    return torch.where(x > 0, 1 / x.double(), 0.0)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root; 0 for x ≤ 0, with gradient 0 rather than inf or NaN."""
    wide = widen(x)
    capped = wide <= 0
    return wide.masked_fill(capped, 1.0).sqrt().masked_fill(capped, 0.0).to(x.dtype)


def sqrt_reference(x: Tensor) -> Tensor:
    """Compute sqrt in float64."""
    return x.double().clamp(min=0).sqrt()


def sqrt_derivative(x: Tensor) -> Tensor:
    """Return 1/(2 sqrt(x)), and 0 below the cap."""
    return torch.where(x > 0, 0.5 / x.double().sqrt(), 0.0)


class _RSqrt(torch.autograd.Function):
    """x^(-1/2), whose backward pass multiplies the gradient by -r³/2 one factor at a time.

    torch computes r³ first, which is infinite for a bfloat16 x below 1e-26, and 0 * inf = NaN.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.rsqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        root: Tensor = _RSqrt.apply(*ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return -0.5 * grad * root * root * root


def rsqrt(x: Tensor) -> Tensor:
    """Return 1/sqrt(x); 1/sqrt(smallest subnormal) for x ≤ 0."""
    wide = widen(x)
    capped = wide <= 0
    result: Tensor = _RSqrt.apply(wide.masked_fill(capped, 1.0))  # type: ignore[no-untyped-call]
    return result.masked_fill(capped, smallest_subnormal(x.dtype) ** -0.5).to(x.dtype)


def rsqrt_reference(x: Tensor) -> Tensor:
    """Compute rsqrt in float64."""
    return x.double().clamp(min=smallest_subnormal(x.dtype)).rsqrt()


def rsqrt_derivative(x: Tensor) -> Tensor:
    """Return -x^(-3/2)/2, and 0 below the cap."""
    return torch.where(x > 0, -0.5 * x.double() ** -1.5, 0.0)


def _exp_limit(dtype: torch.dtype) -> float:
    # One spacing below log(largest): float32 would round log(3.4e38) up, and exp of that is inf.
    return math.log(largest_finite(dtype)) * (1 - torch.finfo(working_dtype(dtype)).eps)


def exp(x: Tensor) -> Tensor:
    """Return e^x; where it would overflow, the largest finite value with gradient 0."""
    wide = widen(x)
    capped = (wide > _exp_limit(x.dtype)) & wide.isfinite()
    result = wide.masked_fill(capped, 0.0).exp()
    return result.masked_fill(capped, largest_finite(x.dtype)).to(x.dtype)


def exp_reference(x: Tensor) -> Tensor:
    """Compute exp in float64."""
    wide = x.double()
    return torch.where(x.isfinite(), wide.exp().clamp(max=largest_finite(x.dtype)), wide.exp())


def exp_derivative(x: Tensor) -> Tensor:
    """Return exp(x), and 0 beyond the cap."""
    slope = x.double().exp()
    return torch.where((slope > largest_finite(x.dtype)) & x.isfinite(), 0.0, slope)


class _Quotient(torch.autograd.Function):
    """a/b for b ≠ 0; the computation of its gradient in b never contains inf * 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a / b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        quotient: Tensor = _Quotient.apply(a, b)  # type: ignore[no-untyped-call]
        # Divide first only if that makes it smaller: then no intermediate exceeds the result.
        slope = torch.where(b.abs() > 1, (grad / b) * quotient, (grad * quotient) / b)
        return grad / b, -slope


def div(a: Tensor, b: Tensor) -> Tensor:
    """Return a / b limited to ±largest; b = 0 counts as ± the smallest subnormal, so 0 / 0 = 0.

    Where the limit is reached, or b is 0, both gradients are 0.
    """
    dtype = torch.promote_types(a.dtype, b.dtype)
    working = working_dtype(dtype)
    wide_a, wide_b = broadcast(a.to(working), b.to(working))
    zero, largest = wide_b == 0, largest_finite(dtype)
    floor = torch.full_like(wide_b, smallest_subnormal(dtype)).copysign(wide_b.detach())
    bound = wide_a.detach() / torch.where(zero, floor, wide_b.detach())
    capped = (zero | (bound.abs() > largest)) & wide_a.isfinite()
    result: Tensor = _Quotient.apply(  # type: ignore[no-untyped-call]
        wide_a.masked_fill(capped, 0.0), wide_b.masked_fill(zero | capped, 1.0)
    )
    return torch.where(capped, bound.clamp(-largest, largest), result).to(dtype)


def div_reference(a: Tensor, b: Tensor) -> Tensor:
    """Compute div in float64; autograd gives its gradient, 0 at the caps."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    wide_a, wide_b = broadcast(a.double(), b.double())
    largest, zero = largest_finite(dtype), wide_b == 0
    at_zero = wide_a.detach() / smallest_subnormal(dtype) * torch.ones_like(wide_b).copysign(wide_b)
    quotient = torch.where(zero, at_zero.detach(), wide_a / wide_b.masked_fill(zero, 1.0))
    # Not quotient.clamp: its gradient at the bound is 1 before torch 2.15, and 0 since.
    return torch.where(
        quotient.abs() > largest, quotient.detach().clamp(-largest, largest), quotient
    )


UNARY = (
    UnaryOp("log", log, log_reference, log_derivative, "x ≤ 0: log(smallest subnormal)"),
    UnaryOp("sqrt", sqrt, sqrt_reference, sqrt_derivative, "x ≤ 0: 0"),
    UnaryOp("rsqrt", rsqrt, rsqrt_reference, rsqrt_derivative, "x ≤ 0: 1/sqrt(smallest subnormal)"),
    UnaryOp("exp", exp, exp_reference, exp_derivative, "x > log(largest): largest"),
)
