"""Softmax and mean over the kept positions of a row, defined even when nothing is kept.

    masked_softmax(x)_i = e^(x_i - m) / Σ_kept e^(x_j - m)    m the largest kept; 0 where masked
    masked_mean(x)      = Σ_kept x_j / n                      n the number kept; 0 if n = 0

In both, ``mask`` is True where a position is kept. A row with nothing kept gives zeros and passes
zero gradients, and what stands at a masked position never matters, not even NaN left over in
padding.

Where a mask must instead be *added* to scores, as attention kernels want it, the filling matters:
finfo.min plus a score of -16 is -inf in float16, and a row full of -inf has no softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops._dtypes import broadcast, widen


def mask_fill_value(dtype: torch.dtype) -> float:
    """What to add to a score of ``dtype`` so that its softmax is 0 and it stays finite.

    A quarter of the most negative value: up to three such masks (causal, padding, packing) and a
    score down to another quarter still add up to a finite number. When scores are replaced rather
    than added to (``masked_fill``), any fill works except for a row with nothing kept;
    ``masked_softmax`` covers that as well.
    """
    return torch.finfo(dtype).min / 4


def masked_softmax(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax of ``x`` over the positions where ``mask`` is True; 0 elsewhere."""
    wide, dropped = broadcast(widen(x), _dropped(mask))
    # A row with nothing kept is computed on zeros, then blanked. -inf throughout would be NaN
    # inside: blanked as well, but anomaly detection and tracing would stop at it.
    empty = dropped.all(dim, keepdim=True)
    scores = wide.masked_fill(dropped, -torch.inf).masked_fill(empty, 0.0)
    return scores.softmax(dim).masked_fill(dropped, 0.0).to(x.dtype)


def masked_softmax_reference(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """masked_softmax in float64."""
    wide = x.double().masked_fill(~mask, 0.0)
    largest = wide.masked_fill(~mask, torch.finfo(torch.float64).min).amax(dim, keepdim=True)
    weight = (wide - largest.clamp(min=-1e300)).clamp(max=0).exp().masked_fill(~mask, 0.0)
    return weight / weight.sum(dim, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def masked_mean(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Mean of ``x`` over the positions where ``mask`` is True; 0 where there are none."""
    wide, dropped = broadcast(widen(x), _dropped(mask))
    count = (~dropped).sum(dim, keepdim=True).clamp(min=1)
    # Divided before it is summed: a sum of large values may overflow where their mean does not.
    return (wide.masked_fill(dropped, 0.0) / count).sum(dim).to(x.dtype)


def masked_mean_reference(x: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """masked_mean in float64."""
    kept = torch.where(mask, x.double(), 0.0)
    return kept.sum(dim) / mask.expand_as(kept).sum(dim).clamp(min=1)


def _dropped(mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise UsageError(
            f"A mask says which positions are kept and must be boolean; it was given {mask.dtype}.",
            cure="Use mask.bool() for ones and zeros, or (mask == 0) for an additive mask.",
        )
    return ~mask
