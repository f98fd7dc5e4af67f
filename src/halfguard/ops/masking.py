"""Softmax and mean over the unmasked positions of a row, defined even if all are masked.

    masked_softmax(x)_i = e^(x_i - m) / Σ_kept e^(x_j - m)    m the largest kept; 0 where masked
    masked_mean(x)      = Σ_kept x_j / n                      n the number kept; 0 if n = 0

In both, ``mask`` is True where a position is kept. A row with nothing kept gives zeros with zero
gradients. Values at masked positions never matter, not even NaN left over in padding.

Some attention kernels *add* a mask to the scores. Then the fill value matters: finfo.min plus a score
of -16 is -inf in float16, and the softmax of a row of only -inf is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops._dtypes import broadcast, widen


def mask_fill_value(dtype: torch.dtype) -> float:
    """Return the value to add to a score of ``dtype`` so that its softmax is 0 and it stays finite.

    It is a quarter of the most negative value: up to three such masks (causal, padding, packing) and
    a score down to another quarter still sum to a finite number. If scores are replaced rather than
    added to (``masked_fill``), any fill works except for a row with nothing kept. ``masked_softmax``
    handles that too.
    """
    return torch.finfo(dtype).min / 4


def masked_softmax(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Compute the softmax of ``x`` over the positions where ``mask`` is True; 0 elsewhere."""
    wide, dropped = broadcast(widen(x), _invert_mask(mask))
    # A row with nothing kept is computed on zeros, then set to 0. With only -inf in the row the result
    # would be the same, but anomaly detection and tracing would stop at the NaN in between.
    empty = dropped.all(dim, keepdim=True)
    scores = wide.masked_fill(dropped, -torch.inf).masked_fill(empty, 0.0)
    return scores.softmax(dim).masked_fill(dropped, 0.0).to(x.dtype)


def masked_softmax_reference(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Compute masked_softmax in float64; autograd gives its gradient."""
    wide = x.double().masked_fill(~mask, 0.0)
    # No clamp on the way of the gradient: at the bound it is 1 before torch 2.15, and 0 since.
    largest = wide.detach().masked_fill(~mask, torch.finfo(torch.float64).min)
    shifted = wide - largest.amax(dim, keepdim=True).clamp(min=-1e300)
    weight = shifted.masked_fill(~mask, 0.0).exp().masked_fill(~mask, 0.0)
    return weight / weight.sum(dim, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def masked_mean(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Compute the mean of ``x`` over the positions where ``mask`` is True; 0 if there are none."""
    wide, dropped = broadcast(widen(x), _invert_mask(mask))
    count = (~dropped).sum(dim, keepdim=True).clamp(min=1)
    # Divide before summing: a sum of large values may overflow where their mean does not.
    return (wide.masked_fill(dropped, 0.0) / count).sum(dim).to(x.dtype)


def masked_mean_reference(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Compute masked_mean in float64."""
    kept = torch.where(mask, x.double(), 0.0)
    return kept.sum(dim) / mask.expand_as(kept).sum(dim).clamp(min=1)


def _invert_mask(mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise UsageError(
            f"A mask must be boolean, True where a position is kept; it was given {mask.dtype}.",
            cure="Use mask.bool() for ones and zeros, or (mask == 0) for an additive mask.",
        )
    return ~mask
