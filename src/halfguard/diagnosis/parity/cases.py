"""The cases of the self-test: operations, data, float64 results, and the error bounds of correct results.

Data are chosen so that bounds are tight and faults show: products of one sign in a sum, logits around 100.
Batch norm gets FP32 weights, as under autocast: without any, torch on a CPU rounds its statistics to half.

Inputs are rounded to the format first, so float64 and the device start from the same numbers, and the whole
difference comes from the device.

**A sum of products** of length k, kept in FP32 and rounded once to the format:

    |computed - exact| <= gamma(k) * sum|a||b| + r * u * |exact|

u is the format's unit roundoff (2^-11 for FP16, 2^-8 for BF16, 2^-24 for FP32); products of 16-bit numbers
are exact in FP32. If the accumulator rounds to nearest, rounding errors are nearly independent, and their
sum grows like a random walk (Higham and Mary, 2019): gamma(k) = 6 sqrt(k) 2^-24, which is exceeded with a
probability below 1e-7. Matrix units truncate instead (Fasi and others, 2021), so errors have one sign and add
up: gamma(k) = k 2^-23. r counts the roundings to the format: one, and up to four on accelerators, where
partial sums may be exchanged in 16 bits and convolutions may use Winograd's transform.

The test data have no cancellation: in every sum all products have one sign, so that sum|a||b| = |exact|. This
makes the bound tight. At k = 2048, correct results in FP16 are within 1.04 u, while a sum that is kept in
FP16 has an error of about u sqrt(k/3), and stops growing where its terms are smaller than its spacing.

**Softmax** subtracts the row's maximum, and its k terms are positive: the same bound, plus the error of exp
in FP32, |x - max| + 8 of FP32's roundings. **Norms** estimate a mean with error gamma * mean|x|, and a
variance with relative error gamma * (1 + mean^2 / variance) if it is the difference of two moments.
**Attention** may round queries, keys, scores and probabilities to the format: each weight p is wrong by its
own factor 1 + e, with |e| at most 2u sum|q||k| + u|score| + u, and the output, a sum over many keys, by the
random walk 6 max(e) sqrt(sum p^2 v^2 + out^2 sum p^2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from halfguard import formats

FP32_UNIT = 2.0**-24  # the unit roundoff of FP32
DEVIATIONS = 6.0  # standard deviations of the random walk, as a bound
ACCELERATOR_ROUNDINGS = 4  # to the format


@dataclass(frozen=True)
class Arithmetic:
    """The rounding behaviour of a device in one format."""

    dtype: torch.dtype
    truncates: bool = False
    roundings: int = 1
    input_roundoff: float = 0.0  # TF32 reads FP32 operands with 11 significant bits

    @property
    def unit(self) -> float:
        """The unit roundoff of the format."""
        return formats.for_dtype(self.dtype).epsilon / 2

    @property
    def floor(self) -> float:
        """The absolute error below the normal range; BF16 and FP32 may flush subnormals to zero."""
        shape = formats.for_dtype(self.dtype)
        return shape.smallest_subnormal if shape.exponent_bits < 8 else shape.smallest_normal

    def gamma(self, length: int) -> float:
        """Return the relative error of a sum of this many terms in FP32."""
        return 2 * length * FP32_UNIT if self.truncates else DEVIATIONS * length**0.5 * FP32_UNIT

    def rounding_error(self, exact: Tensor) -> Tensor:
        """Return the error of rounding the result to the format."""
        return self.roundings * self.unit * exact.abs() + self.roundings * self.floor


def products(exact: Tensor, magnitude: Tensor, length: int, arithmetic: Arithmetic) -> Tensor:
    """Return the bound for sums of products; ``magnitude`` is the sum of their absolute values."""
    # In FP32 the products are rounded as well: one more term.
    sum_error = arithmetic.gamma(length + 1) + 2 * arithmetic.input_roundoff
    return sum_error * magnitude + arithmetic.rounding_error(exact)


def softmax(x: Tensor, exact: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Return the bound for a softmax over the last dimension."""
    distance = x.amax(-1, keepdim=True) - x
    sum_error = arithmetic.gamma(x.shape[-1]) + (distance + 8) * FP32_UNIT
    return sum_error * exact + arithmetic.rounding_error(exact)


def norm(x: Tensor, exact: Tensor, over: tuple[int, ...], arithmetic: Arithmetic) -> Tensor:
    """Return the bound for (x - mean) / deviation over some dimensions, without weights."""
    length = 1
    for dim in over:
        length *= x.shape[dim]
    gamma = arithmetic.gamma(length)
    variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
    variance_error = gamma * (1 + mean.square() / variance)
    mean_error = gamma * x.abs().mean(over, keepdim=True) + 4 * FP32_UNIT * (x.abs() + mean.abs())
    computed = mean_error * variance.rsqrt() + exact.abs() * (2 * variance_error + 8 * FP32_UNIT)
    return computed + arithmetic.rounding_error(exact)


def attention(q: Tensor, k: Tensor, v: Tensor, exact: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Return the bound for softmax(q k' / sqrt(width)) v, with any intermediate roundings."""
    width = q.shape[-1]
    scores = q @ k.mT / width**0.5
    magnitude = q.abs() @ k.abs().mT / width**0.5
    unit = arithmetic.unit + arithmetic.input_roundoff
    score_error = (arithmetic.gamma(width) + 2 * unit) * magnitude + unit * scores.abs()
    weight_error = torch.expm1(score_error.amax(-1, keepdim=True)) + unit
    weights = scores.softmax(-1)
    squares = weights.square()
    squared_sum = squares @ v.square() + exact.square() * squares.sum(-1, keepdim=True)
    span = scores.amax(-1, keepdim=True) - scores.amin(-1, keepdim=True)
    sum_error = 2 * arithmetic.gamma(k.shape[-2]) + (span + 8) * FP32_UNIT
    bound: Tensor = DEVIATIONS * weight_error * squared_sum.sqrt() + sum_error * (weights @ v.abs())
    return bound + arithmetic.rounding_error(exact)


COMPARED = 2  # samples of the batch that are compared with float64
EPS = 1e-5

Tensors = tuple[Tensor, ...]
Operations = Mapping[str, Callable[..., Tensor]]


def _batch_norm(x: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    weight = torch.ones(x.shape[1], dtype=wide, device=x.device)
    return functional.batch_norm(x, None, None, weight, 0 * weight, training=True, eps=EPS)


OPERATIONS: Operations = {
    "matmul": torch.matmul,
    "convolution": partial(functional.conv2d, padding=1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:], eps=EPS),
    "batch norm": _batch_norm,
    "softmax": partial(functional.softmax, dim=-1),
    "attention": functional.scaled_dot_product_attention,
}


@dataclass(frozen=True)
class Case:
    """The inputs of an operation, and the part of them that is compared with float64."""

    make: Callable[[int, torch.Generator], Tensors]
    bound: Callable[[Tensors, Tensor, Arithmetic], Tensor]  # for inputs and results in float64
    select: Callable[[Tensor, int], Tensor]  # the compared part of an input or output
    selectable: tuple[bool, ...]  # for each input, whether select applies; others are used whole


def _batch_elements(x: Tensor, batch: int) -> Tensor:
    chosen = torch.linspace(0, batch - 1, min(batch, COMPARED)).long()
    return x[chosen.to(x.device)]


def _channels(x: Tensor, batch: int) -> Tensor:  # noqa: ARG001  batch norm needs the whole batch
    return x[:, :8]


def _signed_uniform(shape: tuple[int, ...], dim: int, generator: torch.Generator) -> Tensor:
    """Return uniform numbers with one sign per index of ``dim``."""
    signs = torch.ones(len(shape), dtype=torch.long).tolist()
    signs[dim] = shape[dim]
    sign = torch.randint(0, 2, signs, generator=generator) * 2 - 1
    return torch.rand(shape, generator=generator) * sign


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


CASES: Mapping[str, Case] = {
    "matmul": Case(
        lambda n, g: (_signed_uniform((n, 64, 2048), 1, g), _signed_uniform((2048, 512), 1, g)),
        lambda x, out, a: products(out, out.abs(), x[0].shape[-1], a),
        _batch_elements,
        (True, False),
    ),
    "convolution": Case(
        lambda n, g: (
            torch.rand(n, 64, 56, 56, generator=g),
            _signed_uniform((64, 64, 3, 3), 0, g),
        ),
        lambda x, out, a: products(out, out.abs(), x[1][0].numel(), a),
        _batch_elements,
        (True, False),
    ),
    "layer norm": Case(
        lambda n, g: (1 + 2 * _normal((n, 128, 1024), g),),
        lambda x, out, a: norm(x[0], out, (-1,), a),
        _batch_elements,
        (True,),
    ),
    "batch norm": Case(
        lambda n, g: (1 + 2 * _normal((n, 64, 56, 56), g),),
        lambda x, out, a: norm(x[0], out, (0, 2, 3), a),
        _channels,
        (True,),
    ),
    # Logits around 100: exp overflows FP32 unless the maximum is subtracted.
    "softmax": Case(
        lambda n, g: (100 + _normal((n, 64, 2048), g),),
        lambda x, out, a: softmax(x[0], out, a),
        _batch_elements,
        (True,),
    ),
    "attention": Case(
        lambda n, g: tuple(0.7 * _normal((n, 8, 256, 64), g) for _ in range(3)),
        lambda x, out, a: attention(x[0], x[1], x[2], out, a),
        _batch_elements,
        (True, True, True),
    ),
}
