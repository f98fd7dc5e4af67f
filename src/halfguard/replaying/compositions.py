"""The registry of compositions: what several operations together mean, in a form that fits in half's range.

``log(sigmoid(x) + eps)`` loses its gradient where the probability is 0 in half, however the logarithm is
computed: the number is gone before. ``logsigmoid(x)`` has no such number. Every composition here is one small
function: ``text`` says what to write, ``stable`` computes it in float32, and ``meaning`` is the mathematics
that the author had in mind, to be run in float64. The epsilon of a logarithm is not meant, it only avoids
log(0); the epsilon of a norm is, because it decides what happens to short vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from halfguard import ops
from halfguard.precision.upcast import cast_to_fp32


@dataclass(frozen=True)
class Composition:
    """A value that several operations compute together."""

    kind: str
    text: str  # as it is often written, and what to write instead
    stable: Callable[[], Tensor]
    meaning: Callable[[], Tensor]


def log_sigmoid(x: Tensor, *, is_complement: bool) -> Composition:
    """Return log(sigmoid(x) + eps), or log(1 - sigmoid(x) + eps)."""
    old, new = ("1 - sigmoid(x)", "-x") if is_complement else ("sigmoid(x)", "x")
    text = f"log({old}) as torch.nn.functional.logsigmoid({new}) in float32"
    return _whole(
        "log_sigmoid",
        text,
        lambda: F.logsigmoid(-cast_to_fp32(x) if is_complement else cast_to_fp32(x)),
    )


def log_softmax(x: Tensor, dim: int) -> Composition:
    """Return log(softmax(x) + eps)."""
    text = "log(softmax(x)) as torch.log_softmax(x, dim) in float32"
    return _whole("log_softmax", text, lambda: torch.log_softmax(cast_to_fp32(x), dim))


def softplus(x: Tensor) -> Composition:
    """Return log(1 + exp(x)), or log1p(exp(x)); torch's softplus returns x itself from 20 up."""
    text = "log(1 + exp(x)) as torch.nn.functional.softplus(x) in float32"
    meant = partial(torch.logaddexp, x, torch.zeros_like(x))
    return Composition("softplus", text, lambda: F.softplus(cast_to_fp32(x)), meant)


def softmax(x: Tensor, dim: Any) -> Composition:
    """Return exp(x) / sum(exp(x))."""
    text = "exp(x) / sum(exp(x)) as torch.softmax(x, dim) in float32"
    return _whole("softmax", text, lambda: torch.softmax(cast_to_fp32(x), dim))


def log_sum_exp(x: Tensor, dim: Any, keepdim: bool) -> Composition:
    """Return log(sum(exp(x)))."""
    text = "log(sum(exp(x))) as torch.logsumexp(x, dim) in float32"
    return _whole("log_sum_exp", text, lambda: torch.logsumexp(cast_to_fp32(x), dim, keepdim))


@dataclass(frozen=True)
class SumOfSquares:
    """sum(x * x) or mean(x * x), with an epsilon or without; a part of roots and norms."""

    x: Tensor
    dim: Any = None
    keepdim: bool = False
    is_mean: bool = False
    eps: float = 0.0

    def root(self) -> Composition:
        """Return the length of a vector, or its root mean square; for zeros the gradient is 0, not NaN."""
        if self.is_mean or self.eps:
            total = f"{'mean' if self.is_mean else 'sum'}(x * x){' + eps' if self.eps else ''}"
            return _whole("root", f"sqrt({total}) with x in float32", lambda: self._total().sqrt())
        text = "sqrt(sum(x * x)) as torch.linalg.vector_norm(x) in float32"
        return _whole("root", text, self._length)

    def _total(self) -> Tensor:
        reduce = torch.mean if self.is_mean else torch.sum
        squares = cast_to_fp32(self.x).square()  # a half value squared always fits in float32
        total = reduce(squares) if self.dim is None else reduce(squares, self.dim, self.keepdim)
        return total + self.eps if self.eps else total

    def _length(self) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(
            cast_to_fp32(self.x), dim=self.dim, keepdim=self.keepdim
        )
        return length


def unit_vector(x: Tensor, dim: int) -> Composition:
    """Return x / sqrt(sum(x * x)), with an epsilon beside the root or without; zeros stay zero."""
    text = "x / sqrt(sum(x * x)) as halfguard.ops.normalize(x, dim)"
    return _whole("unit_vector", text, lambda: ops.normalize(x, dim))


def rms_norm(x: Tensor, eps: float) -> Composition:
    """Return x / sqrt(mean(x * x) + eps) along the last dimension."""
    text = "x / sqrt(mean(x * x) + eps) as halfguard.ops.rms_norm(x, eps=eps)"
    return _whole("rms_norm", text, lambda: ops.rms_norm(x, eps=eps))


def _whole(kind: str, text: str, stable: Callable[[], Tensor]) -> Composition:
    """Return a composition whose stable form is what is meant."""
    return Composition(kind, text, stable, stable)
