"""Softmax over the unmasked positions of a row, defined even if all are masked.

    masked_softmax(x)_i = e^(x_i - m) / Σ_kept e^(x_j - m)    m the largest kept; 0 where masked

``mask`` is True where a position is kept. A row with nothing kept gives zeros with zero gradients.
Values at masked positions never matter, not even NaN left over in padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops._dtypes import broadcast, widen


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


def _invert_mask(mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise UsageError(
            f"A mask must be boolean, True where a position is kept; it was given {mask.dtype}.",
            cure="Use mask.bool() for ones and zeros, or (mask == 0) for an additive mask.",
        )
    return ~mask
