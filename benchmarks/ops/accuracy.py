"""Measure the error of an operation, in ulp, over every value of a half dtype.

    error = |result - exact| / ulp(exact)

``exact`` is the float64 reference, not rounded, so a correctly rounded result has an error of at
most 0.5. halfguard.ops promises at most 1. ulp(exact) is the spacing of the dtype at ``exact``. It is
constant among subnormals, so a lost subnormal counts in full. Beyond the largest finite value, inf
stands for the next power of two: exact values above that must give inf.

This is not part of the tests because the result depends on the machine: a GPU computes exponentials
differently from a CPU. Use ``measure(op, all_finite(dtype, device="cuda"))`` to measure yours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.ops.references import UnaryOp
from halfguard.ops._dtypes import largest_finite, smallest_subnormal


@dataclass(frozen=True)
class LargestError:
    """The largest error in ulp, and the input at which it occurs."""

    error: float
    at: float

    def __str__(self) -> str:
        return f"{self.error:.4g} ulp at x = {self.at!r}"


@dataclass(frozen=True)
class Accuracy:
    """The largest errors of one operation, in its value and in its gradient."""

    forward: LargestError
    gradient: LargestError


def all_values(dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return every bit pattern of a 16-bit dtype, with NaNs, infinities, subnormals and both zeros."""
    return torch.arange(-(2**15), 2**15, device=device).to(torch.int16).view(dtype)


def all_finite(dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return every finite value of a 16-bit dtype, in ascending order."""
    values = all_values(dtype, device)
    return values[values.isfinite()].sort().values


def spacing(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the distance between neighbouring values of ``dtype`` at ``exact`` (float64)."""
    exponent = exact.abs().clamp(max=largest_finite(dtype)).frexp().exponent
    ulp = torch.ldexp(torch.full_like(exact, torch.finfo(dtype).eps), exponent - 1)
    return ulp.clamp(min=smallest_subnormal(dtype))


def ulp_error(result: Tensor, exact: Tensor) -> Tensor:
    """Return the error of ``result`` in ulp of its own dtype; infinite where it is NaN."""
    ceiling = math.ldexp(1.0, math.frexp(largest_finite(result.dtype))[1])
    distance = result.double().clamp(-ceiling, ceiling) - exact.clamp(-ceiling, ceiling)
    error = distance.abs() / spacing(exact, result.dtype)
    return error.masked_fill(error.isnan(), math.inf)


def gradient(unary: UnaryOp, x: Tensor, upstream: float = 1.0) -> Tensor:
    """Return the gradient that autograd computes for a constant upstream gradient."""
    leaf = x.detach().clone().requires_grad_()
    result = unary.op(leaf)
    return torch.autograd.grad(result, leaf, torch.full_like(result, upstream))[0]


def measure(unary: UnaryOp, x: Tensor, upstream: float = 1.0) -> Accuracy:
    """Find the largest error of the value and of the gradient over the inputs ``x``."""
    slope = unary.derivative(x) * upstream
    return Accuracy(
        forward=_largest_error(ulp_error(unary.op(x), unary.reference(x)), x),
        gradient=_largest_error(ulp_error(gradient(unary, x, upstream), slope), x),
    )


def _largest_error(error: Tensor, x: Tensor) -> LargestError:
    index = error.argmax()
    return LargestError(float(error[index]), float(x[index]))
