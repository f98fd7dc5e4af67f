"""How far an operation is from the truth, in ulp, over every value that a half dtype has.

    error = |result - exact| / ulp(exact)

``exact`` is the float64 reference, never rounded, so a correctly rounded result scores at most 0.5
and the contract of halfguard.ops is 1. ulp(exact) is the spacing of the dtype where ``exact`` lies:
constant among subnormals, so that a lost subnormal counts as fully as any other. Beyond the largest
finite value the scale goes on to the next power of two, for which inf stands: an exact value past
it demands inf.

It lives here and not among the tests because the answer depends on the machine: a GPU has other
exponentials than a CPU. ``measure(op, all_finite(dtype, device="cuda"))`` asks yours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from halfguard.ops import capping, elementary, ranking
from halfguard.ops._dtypes import largest_finite, smallest_subnormal
from halfguard.ops.unary import UnaryOp

UNARY: tuple[UnaryOp, ...] = (*elementary.UNARY, *ranking.UNARY, *capping.UNARY)


@dataclass(frozen=True)
class Worst:
    """The largest error in ulp, and the input at which it occurs."""

    error: float
    at: float

    def __str__(self) -> str:
        return f"{self.error:.4g} ulp at x = {self.at!r}"


@dataclass(frozen=True)
class Accuracy:
    """What one operation costs in accuracy, in its value and in its gradient."""

    forward: Worst
    gradient: Worst


def all_values(dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Every bit pattern of a 16-bit dtype: NaNs, infinities, subnormals and both zeros included."""
    return torch.arange(-(2**15), 2**15, device=device).to(torch.int16).view(dtype)


def all_finite(dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Every finite value of a 16-bit dtype, in ascending order."""
    values = all_values(dtype, device)
    return values[values.isfinite()].sort().values


def spacing(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring values of ``dtype`` around ``exact`` (float64)."""
    exponent = exact.abs().clamp(max=largest_finite(dtype)).frexp().exponent
    ulp = torch.ldexp(torch.full_like(exact, torch.finfo(dtype).eps), exponent - 1)
    return ulp.clamp(min=smallest_subnormal(dtype))


def ulp_error(result: Tensor, exact: Tensor) -> Tensor:
    """The error of ``result`` in ulp of its own dtype; infinite where it is NaN."""
    ceiling = math.ldexp(1.0, math.frexp(largest_finite(result.dtype))[1])
    distance = result.double().clamp(-ceiling, ceiling) - exact.clamp(-ceiling, ceiling)
    error = distance.abs() / spacing(exact, result.dtype)
    return error.masked_fill(error.isnan(), math.inf)


def gradient(unary: UnaryOp, x: Tensor, upstream: float = 1.0) -> Tensor:
    """The gradient that autograd finds, for a constant gradient from above."""
    leaf = x.detach().clone().requires_grad_()
    result = unary.op(leaf)
    (found,) = torch.autograd.grad(result, leaf, torch.full_like(result, upstream))
    return found


def measure(unary: UnaryOp, x: Tensor, upstream: float = 1.0) -> Accuracy:
    """The worst value and the worst gradient of an operation over the inputs ``x``."""
    slope = unary.derivative(x) * upstream
    return Accuracy(
        forward=_worst(ulp_error(unary.op(x), unary.reference(x)), x),
        gradient=_worst(ulp_error(gradient(unary, x, upstream), slope), x),
    )


def _worst(error: Tensor, x: Tensor) -> Worst:
    index = error.argmax()
    return Worst(float(error[index]), float(x[index]))
