"""Normalization: vectors by their length, for any length, and softmax over unmasked positions.

    masked_softmax(x)_i    = e^(x_i - m) / Σ_kept e^(x_j - m)    m the largest kept; 0 where masked
    normalize(x)           = x / |x|
    cosine_similarity(a,b) = (a / |a|) · (b / |b|)
    rms_norm(x)            = x / sqrt(mean(x²) + eps) * weight

Squares are the problem: they overflow in float16 at 256 and underflow at 2e-4, and in float32 and
bfloat16 at 1e19 and 1e-19. So the vector is first divided by its largest magnitude s,

    |x| = s * |x / s|,   with entries of x / s within ±1 and at least one of them ±1,

which holds for any s: s can be treated as a constant in the backward pass, and autograd still finds
the exact gradient. Short vectors need no eps. Only the zero vector is a special case: it is
normalized to zero, with gradient 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops._dtypes import broadcast, smallest_subnormal, widen, working_dtype


def _scaled_length(wide: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return x / s, |x / s| and s; 0, 1 and 0 for the zero vector, to avoid a division by 0."""
    scale = wide.detach().abs().amax(dim, keepdim=True)
    zero = scale == 0
    scaled = wide / scale.masked_fill(zero, 1.0)
    squares = scaled.square().sum(dim, keepdim=True)
    return scaled, squares.masked_fill(zero, 1.0).sqrt(), scale


def _unit_vectors(wide: Tensor, dim: int) -> Tensor:
    scaled, length, scale = _scaled_length(wide, dim)
    return (scaled / length).masked_fill(scale == 0, 0.0)


def normalize(x: Tensor, dim: int = -1) -> Tensor:
    """Divide ``x`` by its Euclidean norm along ``dim``. Zero vectors stay zero."""
    return _unit_vectors(widen(x), dim).to(x.dtype)


def cosine_similarity(a: Tensor, b: Tensor, dim: int = -1) -> Tensor:
    """Return the cosine similarity of ``a`` and ``b`` along ``dim``, or 0 if one of them is zero."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    unit_a, unit_b = (_unit_vectors(x.to(working_dtype(dtype)), dim) for x in (a, b))
    return (unit_a * unit_b).sum(dim).to(dtype)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Divide ``x`` by its root mean square along the last dimension, and multiply by ``weight``.

    The default of ``eps`` is the smallest subnormal of the dtype, 6e-8 in float16. Models are commonly
    trained with 1e-6; pass the model's own eps to reproduce its results. At a zero vector, eps limits the
    gradient to 1/sqrt(eps), 4096 in float16.
    """
    if eps is None:
        eps = smallest_subnormal(x.dtype)
    if not eps > 0:
        raise UsageError(
            f"rms_norm divides by sqrt(mean(x²) + eps) and needs eps > 0, but got {eps!r}.",
            cure="Omit eps; the default depends on the dtype.",
        )
    wide = widen(x)
    _, length, scale = _scaled_length(wide, -1)
    rms = scale * (length / math.sqrt(x.shape[-1]))
    # hypot(rms, sqrt(eps)) is sqrt(rms² + eps) without a square that can overflow.
    result = wide / rms.hypot(torch.full_like(rms, math.sqrt(eps)))
    if weight is not None:
        result = result * weight.to(result.dtype)
    return result.to(x.dtype)


def masked_softmax(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Compute the softmax of ``x`` over the positions where ``mask`` is True, with 0 elsewhere.

    A row in which every position is masked returns zeros with zero gradients. Values at masked positions
    have no effect, even if they are NaN.
    """
    wide, dropped = broadcast(widen(x), _invert_mask(mask))
    # A row with nothing kept is computed on zeros, then set to 0. With only -inf in the row the result
    # would be the same, but anomaly detection and tracing would stop at the NaN in between.
    empty = dropped.all(dim, keepdim=True)
    scores = wide.masked_fill(dropped, -torch.inf).masked_fill(empty, 0.0)
    return scores.softmax(dim).masked_fill(dropped, 0.0).to(x.dtype)


def _invert_mask(mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise UsageError(
            f"A mask must be boolean, with True where a position is kept, but got {mask.dtype}.",
            cure="Use mask.bool() for ones and zeros, or (mask == 0) for an additive mask.",
        )
    return ~mask
