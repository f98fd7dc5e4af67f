"""The exact values of halfguard's operations in float64, and the exact slopes of those with one argument.

A half dtype has 65,536 values, so an operation of one argument is checked on all of them: against
its exact value and its exact slope, both in float64. ``UnaryOp`` describes it for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from halfguard.ops import exp, log, logsigmoid, rsqrt, soft_cap, sqrt
from halfguard.ops._dtypes import broadcast, largest_finite, smallest_subnormal

TensorMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class UnaryOp:
    """One operation with its exact value and slope.

    ``reference`` and ``derivative`` take the same tensor as ``op``, whose dtype sets the cap, and
    return float64. The slope has its own formula: autograd of a float64 reference cancels in the
    tails, where a gradient is lost most easily.
    """

    name: str
    op: TensorMap
    reference: TensorMap
    derivative: TensorMap
    cap: str


def log_reference(x: Tensor) -> Tensor:
    """Compute log in float64."""
    return x.double().clamp(min=smallest_subnormal(x.dtype)).log()


def log_derivative(x: Tensor) -> Tensor:
    """Return 1/x, and 0 below the cap."""
    return torch.where(x > 0, 1 / x.double(), 0.0)


def sqrt_reference(x: Tensor) -> Tensor:
    """Compute sqrt in float64."""
    return x.double().clamp(min=0).sqrt()


def sqrt_derivative(x: Tensor) -> Tensor:
    """Return 1/(2 sqrt(x)), and 0 below the cap."""
    return torch.where(x > 0, 0.5 / x.double().sqrt(), 0.0)


def rsqrt_reference(x: Tensor) -> Tensor:
    """Compute rsqrt in float64."""
    return x.double().clamp(min=smallest_subnormal(x.dtype)).rsqrt()


def rsqrt_derivative(x: Tensor) -> Tensor:
    """Return -x^(-3/2)/2, and 0 below the cap."""
    return torch.where(x > 0, -0.5 * x.double() ** -1.5, 0.0)


def exp_reference(x: Tensor) -> Tensor:
    """Compute exp in float64."""
    wide = x.double()
    return torch.where(x.isfinite(), wide.exp().clamp(max=largest_finite(x.dtype)), wide.exp())


def exp_derivative(x: Tensor) -> Tensor:
    """Return exp(x), and 0 beyond the cap."""
    slope = x.double().exp()
    return torch.where((slope > largest_finite(x.dtype)) & x.isfinite(), 0.0, slope)


def logsigmoid_reference(x: Tensor) -> Tensor:
    """Compute logsigmoid in float64."""
    wide = x.double()
    return wide.clamp(max=0) - (-wide.abs()).exp().log1p()


def logsigmoid_derivative(x: Tensor) -> Tensor:
    """Return sigmoid(-x)."""
    return 1 / (1 + x.double().exp())


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


def soft_cap_reference(x: Tensor, cap: float) -> Tensor:
    """Compute soft_cap in float64."""
    return cap * (x.double() / cap).tanh()


def soft_cap_derivative(x: Tensor, cap: float) -> Tensor:
    """Return 1 / cosh²(x / cap)."""
    return (x.double() / cap).cosh() ** -2


def soft_cap_op(cap: float) -> UnaryOp:
    """Return soft_cap with a fixed cap, as a unary operation."""
    return UnaryOp(
        f"soft_cap({cap:g})",
        partial(soft_cap, cap=cap),
        partial(soft_cap_reference, cap=cap),
        partial(soft_cap_derivative, cap=cap),
        "none: bounded by ±cap, true gradient",
    )


def cross_entropy_reference(
    logits: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Tensor:
    """Compute cross_entropy in float64."""
    wide = logits.double() if target.ndim == 0 else logits.double().movedim(1, -1)
    log_probabilities = wide - wide.logsumexp(-1, keepdim=True)
    counted = target != ignore_index
    index = target.masked_fill(~counted, 0).unsqueeze(-1)
    picked = log_probabilities.gather(-1, index).squeeze(-1)
    smooth = log_probabilities.mean(-1)
    loss = (1 - label_smoothing) * picked + label_smoothing * smooth
    return -loss.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


def binary_cross_entropy_reference(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute binary_cross_entropy in float64, for probabilities strictly between 0 and 1."""
    p, t = probabilities.double(), target.double()
    return -(t * p.log() + (1 - t) * (-p).log1p()).mean()


def bpr_loss_reference(positive_scores: Tensor, negative_scores: Tensor) -> Tensor:
    """Compute bpr_loss in float64."""
    margin = positive_scores.double() - negative_scores.double()
    return torch.logaddexp(torch.zeros_like(margin), -margin).mean()


def normalize_reference(x: Tensor, dim: int = -1) -> Tensor:
    """Compute normalize in float64, for vectors that are not zero."""
    wide = x.double()
    return wide / wide.square().sum(dim, keepdim=True).sqrt()


def cosine_similarity_reference(a: Tensor, b: Tensor, dim: int = -1) -> Tensor:
    """Compute cosine_similarity in float64, for vectors that are not zero."""
    return (normalize_reference(a, dim) * normalize_reference(b, dim)).sum(dim)


def rms_norm_reference(x: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Compute rms_norm in float64."""
    wide = x.double()
    floor = smallest_subnormal(x.dtype) if eps is None else eps
    result = wide * (wide.square().mean(-1, keepdim=True) + floor).rsqrt()
    return result if weight is None else result * weight.double()


def masked_softmax_reference(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Compute masked_softmax in float64; autograd gives its gradient."""
    wide = x.double().masked_fill(~mask, 0.0)
    # No clamp on the way of the gradient: at the bound it is 1 before torch 2.15, and 0 since.
    largest = wide.detach().masked_fill(~mask, torch.finfo(torch.float64).min)
    shifted = wide - largest.amax(dim, keepdim=True).clamp(min=-1e300)
    weight = shifted.masked_fill(~mask, 0.0).exp().masked_fill(~mask, 0.0)
    return weight / weight.sum(dim, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def distillation_loss_reference(
    student_logits: Tensor,
    teacher_logits: Tensor,
    target: Tensor,
    *,
    temperature: float,
    kd_weight: float,
    ce_weight: float,
    ignore_index: int = -100,
) -> Tensor:
    """Compute the total of distillation_loss in float64, for finite logits."""
    counted = target != ignore_index
    student = student_logits.double()[counted]
    teacher = teacher_logits.detach().double()[counted]
    probabilities = (teacher / temperature).softmax(-1)
    ratio = probabilities.log() - (student / temperature).log_softmax(-1)
    kl = torch.where(probabilities > 0, probabilities * ratio, 0.0).sum()
    kd = temperature**2 * kl / counted.sum().clamp(min=1)
    return kd_weight * kd + ce_weight * cross_entropy_reference(student, target[counted])


UNARY = (
    UnaryOp("log", log, log_reference, log_derivative, "x ≤ 0: log(smallest subnormal)"),
    UnaryOp("sqrt", sqrt, sqrt_reference, sqrt_derivative, "x ≤ 0: 0"),
    UnaryOp("rsqrt", rsqrt, rsqrt_reference, rsqrt_derivative, "x ≤ 0: 1/sqrt(smallest subnormal)"),
    UnaryOp("exp", exp, exp_reference, exp_derivative, "x > log(largest): largest"),
    UnaryOp("logsigmoid", logsigmoid, logsigmoid_reference, logsigmoid_derivative, "none"),
    soft_cap_op(30.0),
)
