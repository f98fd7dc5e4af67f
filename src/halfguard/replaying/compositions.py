"""The registry of compositions: what several operations together mean, in a form that fits in half's range.

``log(sigmoid(x) + eps)`` loses its gradient where the probability is 0 in half, however the logarithm is
computed: the number is gone before. ``logsigmoid(x)`` has no such number. Every composition here is one small
class: ``text`` says what to write, ``stable`` computes it in float32, and ``meaning`` is the mathematics that
the author had in mind, to be run in float64. The epsilon of a logarithm is not meant, it only avoids log(0);
the epsilon of a norm is, because it decides what happens to short vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from halfguard import ops
from halfguard.precision.modes import HALF_DTYPES


class Composition(Protocol):
    """A value that several operations compute together."""

    @property
    def text(self) -> str:
        """The composition as it is often written, and what to write instead."""

    def stable(self) -> Tensor:
        """Compute it as a whole, in float32 for a half input."""

    def meaning(self) -> Tensor:
        """Compute what is meant; run in float64 it is the reference."""


@dataclass(frozen=True)
class LogSigmoid:
    """log(sigmoid(x) + eps), or log(1 - sigmoid(x) + eps)."""

    x: Tensor
    is_complement: bool = False

    @property
    def text(self) -> str:
        """The composition as it is often written, and what to write instead."""
        old, new = ("1 - sigmoid(x)", "-x") if self.is_complement else ("sigmoid(x)", "x")
        return f"log({old}) as torch.nn.functional.logsigmoid({new}) in float32"

    def stable(self) -> Tensor:
        """Compute it from the logits."""
        x = _wide(self.x)
        return F.logsigmoid(-x if self.is_complement else x)

    meaning = stable


@dataclass(frozen=True)
class LogSoftmax:
    """log(softmax(x) + eps)."""

    x: Tensor
    dim: int
    text: str = "log(softmax(x)) as torch.log_softmax(x, dim) in float32"

    def stable(self) -> Tensor:
        """Compute it from the logits."""
        return torch.log_softmax(_wide(self.x), self.dim)

    meaning = stable


@dataclass(frozen=True)
class Softplus:
    """log(1 + exp(x)), or log1p(exp(x))."""

    x: Tensor
    text: str = "log(1 + exp(x)) as torch.nn.functional.softplus(x) in float32"

    def stable(self) -> Tensor:
        """Compute it without the exponential of a large number."""
        return F.softplus(_wide(self.x))

    def meaning(self) -> Tensor:
        """Compute log(e^0 + e^x); softplus returns x itself from 20 up."""
        return torch.logaddexp(self.x, torch.zeros_like(self.x))


@dataclass(frozen=True)
class Softmax:
    """exp(x) / sum(exp(x))."""

    x: Tensor
    dim: Any
    text: str = "exp(x) / sum(exp(x)) as torch.softmax(x, dim) in float32"

    def stable(self) -> Tensor:
        """Compute it with the largest exponent subtracted."""
        return torch.softmax(_wide(self.x), self.dim)

    meaning = stable


@dataclass(frozen=True)
class LogSumExp:
    """log(sum(exp(x)))."""

    x: Tensor
    dim: Any
    keepdim: bool = False
    text: str = "log(sum(exp(x))) as torch.logsumexp(x, dim) in float32"

    def stable(self) -> Tensor:
        """Compute it with the largest exponent subtracted."""
        return torch.logsumexp(_wide(self.x), self.dim, self.keepdim)

    meaning = stable


@dataclass(frozen=True)
class SumOfSquares:
    """sum(x * x) or mean(x * x), with an epsilon or without; a part of roots and norms."""

    x: Tensor
    dim: Any = None
    keepdim: bool = False
    is_mean: bool = False
    eps: float = 0.0

    def stable(self) -> Tensor:
        """Compute it in float32; a half value squared always fits there."""
        reduce = torch.mean if self.is_mean else torch.sum
        squares = _wide(self.x).square()
        total = reduce(squares) if self.dim is None else reduce(squares, self.dim, self.keepdim)
        return total + self.eps if self.eps else total


@dataclass(frozen=True)
class Root:
    """sqrt(sum(x * x)), the length of a vector or its root mean square."""

    squares: SumOfSquares

    @property
    def text(self) -> str:
        """The composition as it is often written, and what to write instead."""
        if self.squares.is_mean or self.squares.eps:
            return "sqrt(mean(x * x)) with x in float32"
        return "sqrt(sum(x * x)) as torch.linalg.vector_norm(x) in float32"

    def stable(self) -> Tensor:
        """Compute it in float32; a vector of zeros has the gradient 0, not NaN."""
        if self.squares.is_mean or self.squares.eps:
            return self.squares.stable().sqrt()
        wide, dim = _wide(self.squares.x), self.squares.dim
        length: Tensor = torch.linalg.vector_norm(wide, dim=dim, keepdim=self.squares.keepdim)
        return length

    meaning = stable


@dataclass(frozen=True)
class UnitVector:
    """x / sqrt(sum(x * x)), with an epsilon beside the root or without."""

    x: Tensor
    dim: int
    text: str = "x / sqrt(sum(x * x)) as halfguard.ops.normalize(x, dim)"

    def stable(self) -> Tensor:
        """Divide by the length; a vector of zeros stays zero."""
        return ops.normalize(self.x, self.dim)

    meaning = stable


@dataclass(frozen=True)
class RmsNorm:
    """x / sqrt(mean(x * x) + eps) along the last dimension."""

    x: Tensor
    eps: float
    text: str = "x / sqrt(mean(x * x) + eps) as halfguard.ops.rms_norm(x, eps=eps)"

    def stable(self) -> Tensor:
        """Divide by the root mean square."""
        return ops.rms_norm(self.x, eps=self.eps)

    meaning = stable


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF_DTYPES else x
