"""log, sqrt, rsqrt, exp, logsigmoid, division and a soft cap that stay finite on every finite input.

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

    logsigmoid(x) = log(1 / (1 + e^-x)) = min(x, 0) - log1p(e^-|x|)
    d/dx          = 1 / (1 + e^x)       = z / (1 + z) with z = e^-x for x > 0, no cancellation

needs no cap: every finite x has a finite value. log(sigmoid(x) + eps) fails twice in half:
sigmoid(x) is 0 below -17, and an eps of 1e-8 is 0 as well.

A cap replaces the *input* of the function as well as the output. Replacing only the output would
leave 0 * inf = NaN in the backward pass.

A smooth bound on activations or logits that keeps their gradient non-zero.

    soft_cap(x) = cap * tanh(x / cap)
    d/dx        = sech²(u) = 4z / (1 + z)²,  u = x / cap, z = e^(-2|u|)

A hard clamp at ±cap zeroes the gradient of exactly those values that need correction. tanh keeps
it, if it is computed carefully. torch's 1 - tanh² is 0 in float32 from |u| = 9.1 up, since tanh is
rounded to 1. The true slope is 5e-8 there, which a loss scale of 1024 brings well into the range
of float16; bfloat16 can represent it up to |u| = 47.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops._dtypes import (
    broadcast,
    largest_finite,
    smallest_subnormal,
    widen,
    working_dtype,
)


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm, or log(smallest subnormal) for x ≤ 0."""
    wide = widen(x)
    capped = wide <= 0
    result = wide.masked_fill(capped, 1.0).log()
    return result.masked_fill(capped, math.log(smallest_subnormal(x.dtype))).to(x.dtype)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root, or 0 for x ≤ 0, with gradient 0 instead of Inf or NaN."""
    wide = widen(x)
    capped = wide <= 0
    return wide.masked_fill(capped, 1.0).sqrt().masked_fill(capped, 0.0).to(x.dtype)


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
    """Return 1/sqrt(x), or 1/sqrt(smallest subnormal) for x ≤ 0."""
    wide = widen(x)
    capped = wide <= 0
    result: Tensor = _RSqrt.apply(wide.masked_fill(capped, 1.0))  # type: ignore[no-untyped-call]
    return result.masked_fill(capped, smallest_subnormal(x.dtype) ** -0.5).to(x.dtype)


def _exp_limit(dtype: torch.dtype) -> float:
    # One spacing below log(largest): float32 would round log(3.4e38) up, and exp of that is inf.
    return math.log(largest_finite(dtype)) * (1 - torch.finfo(working_dtype(dtype)).eps)


def exp(x: Tensor) -> Tensor:
    """Return e^x. Where it would overflow, return the largest finite value, with gradient 0."""
    wide = widen(x)
    capped = (wide > _exp_limit(x.dtype)) & wide.isfinite()
    result = wide.masked_fill(capped, 0.0).exp()
    return result.masked_fill(capped, largest_finite(x.dtype)).to(x.dtype)


def logsigmoid(x: Tensor) -> Tensor:
    """Return log(sigmoid(x)): about x for very negative x, about -e^-x for large x."""
    return F.logsigmoid(widen(x)).to(x.dtype)


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
    """Return a / b, clamped to the finite range. If b is 0, it is replaced by ± the smallest subnormal.

    So 0 / 0 is 0. Where the result is clamped or b is 0, both gradients are 0.
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


class _SoftCap(torch.autograd.Function):
    """cap * tanh(x / cap) whose gradient does not cancel in the tails."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, cap: float) -> Tensor:
        return cap * (x / cap).tanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        x, ctx.cap = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        z = (-2 * (x / ctx.cap).abs()).exp()
        return grad * (4 * z / (1 + z).square()), None


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap), which is close to x for small ``|x|`` and never exceeds ±cap."""
    if not (math.isfinite(cap) and smallest_subnormal(x.dtype) <= cap <= largest_finite(x.dtype)):
        raise UsageError(
            f"soft_cap needs a cap between 0 and {largest_finite(x.dtype):g}, the largest finite "
            f"value of {x.dtype}, but got {cap!r}.",
            cure="Logits are commonly capped at 30 to 50.",
        )
    bounded: Tensor = _SoftCap.apply(widen(x), cap)  # type: ignore[no-untyped-call]
    return bounded.to(x.dtype)
