r"""How far a right result may lie from float64: the error analysis behind the parity self-test.

Inputs are rounded into the format first, so that float64 and the device start from the same numbers, and all
of the difference is the device's own.

**A sum of products** of length k, kept in FP32 and rounded once into the format:

    |computed - exact| <= gamma(k) * sum|a||b| + r * u * |exact|

u is the format's unit roundoff (2^-11 for FP16, 2^-8 for BF16, 2^-24 for FP32); products of 16-bit numbers
are exact in FP32. For an accumulator that rounds to nearest, roundings are as good as independent, and their
sum grows like a random walk (Higham and Mary, 2019): gamma(k) = 6 sqrt(k) 2^-24, which is exceeded with a
probability below 1e-7. Matrix units truncate instead (Fasi and others, 2021), which adds up one way:
gamma(k) = k 2^-23. r counts the roundings into the format: one, and up to four on accelerators, where partial
sums may be exchanged in 16 bits and convolutions may go through Winograd's transform.

The test data have no cancellation: in every sum all products have one sign, so that sum|a||b| = |exact|. This
makes the bound sharp. At k = 2048, right results in FP16 lie within 1.04 u, while a sum that is itself kept
in FP16 drifts by about u sqrt(k/3), and stops growing where its terms are smaller than its spacing.

**Softmax** subtracts the row's maximum, and its k terms are positive: the same, with the error of exp in FP32
added, |x - max| + 8 of FP32's roundings. **Norms** estimate a mean, off by gamma * mean|x|, and a
variance, relatively off by gamma * (1 + mean^2 / variance) when it is the difference of two moments.
**Attention** may round queries, keys, scores and probabilities into the format on its way: each weight p is
off by a factor 1 + e of its own, with |e| at most 2u sum|q||k| + u|score| + u, and the output, a sum over
many keys, by the random walk 6 max(e) sqrt(sum p^2 v^2 + out^2 sum p^2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from halfguard import formats

SINGLE = 2.0**-24  # the unit roundoff of FP32
WALK = 6.0  # standard deviations of the random walk
ON_ACCELERATORS = 4  # roundings into the format


@dataclass(frozen=True)
class Arithmetic:
    """How a device computes in one format."""

    dtype: torch.dtype
    truncates: bool = False
    roundings: int = 1
    input_roundoff: float = 0.0  # TF32 reads FP32 operands with 11 bits

    @property
    def unit(self) -> float:
        """The format's unit roundoff."""
        return formats.for_dtype(self.dtype).epsilon / 2

    @property
    def floor(self) -> float:
        """What is lost below the normal range; formats with FP32's exponent may flush it to zero."""
        shape = formats.for_dtype(self.dtype)
        return shape.smallest_subnormal if shape.exponent_bits < 8 else shape.smallest_normal

    def gamma(self, length: int) -> float:
        """The relative error of a sum of this many terms in FP32."""
        return 2 * length * SINGLE if self.truncates else WALK * length**0.5 * SINGLE

    def stored(self, exact: Tensor) -> Tensor:
        """The error of rounding the result into the format."""
        return self.roundings * self.unit * exact.abs() + self.roundings * self.floor


def products(exact: Tensor, magnitude: Tensor, length: int, arithmetic: Arithmetic) -> Tensor:
    """For sums of products; ``magnitude`` is the sum of their absolute values."""
    # FP32's own products are rounded, too: one more term.
    summed = arithmetic.gamma(length + 1) + 2 * arithmetic.input_roundoff
    return summed * magnitude + arithmetic.stored(exact)


def softmax(x: Tensor, exact: Tensor, arithmetic: Arithmetic) -> Tensor:
    """For a softmax over the last dimension."""
    distance = x.amax(-1, keepdim=True) - x
    summed = arithmetic.gamma(x.shape[-1]) + (distance + 8) * SINGLE
    return summed * exact + arithmetic.stored(exact)


def norm(x: Tensor, exact: Tensor, over: tuple[int, ...], arithmetic: Arithmetic) -> Tensor:
    """For (x - mean) / deviation over some dimensions, without weights; ``exact`` is that quotient."""
    length = 1
    for dim in over:
        length *= x.shape[dim]
    gamma = arithmetic.gamma(length)
    variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
    spread = gamma * (1 + mean.square() / variance)
    shifted = gamma * x.abs().mean(over, keepdim=True) + 4 * SINGLE * (x.abs() + mean.abs())
    inner = shifted * variance.rsqrt() + exact.abs() * (2 * spread + 8 * SINGLE)
    return inner + arithmetic.stored(exact)


def attention(q: Tensor, k: Tensor, v: Tensor, exact: Tensor, arithmetic: Arithmetic) -> Tensor:
    """For softmax(q k' / sqrt(width)) v, wherever it rounds on its way."""
    width = q.shape[-1]
    scores = q @ k.mT / width**0.5
    magnitude = q.abs() @ k.abs().mT / width**0.5
    unit = arithmetic.unit + arithmetic.input_roundoff
    moved = (arithmetic.gamma(width) + 2 * unit) * magnitude + unit * scores.abs()
    off = torch.expm1(moved.amax(-1, keepdim=True)) + unit
    weights = scores.softmax(-1)
    squares = weights.square()
    walk = squares @ v.square() + exact.square() * squares.sum(-1, keepdim=True)
    span = scores.amax(-1, keepdim=True) - scores.amin(-1, keepdim=True)
    summed = 2 * arithmetic.gamma(k.shape[-2]) + (span + 8) * SINGLE
    bound: Tensor = WALK * off * walk.sqrt() + summed * (weights @ v.abs())
    return bound + arithmetic.stored(exact)
