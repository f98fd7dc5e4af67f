"""Count the values of every tensor by exponent: one bin per power of two (binade).

A floating-point format covers a range of binades: FP16 holds 2**-24 to 2**15, and a loss scale of 2**k
moves the values k bins to the right. So a histogram of exponents answers every question about range, for
any format and any scale, after training. The bins are the binades of float32 (float64 values beyond them
go to the outermost bins), zero, infinity and NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from halfguard.numerics.tensor_rows import TensorRows, in_list_order, lay_out

LOWEST, HIGHEST = -149, 127  # the binades of float32, subnormals included
ZERO, INFINITE, NAN = 0, HIGHEST - LOWEST + 2, HIGHEST - LOWEST + 3
BINS = NAN + 1


def bin_index(binade: int) -> int:
    """Return the bin of the values v with 2**binade <= abs(v) < 2**(binade + 1)."""
    return min(max(binade, LOWEST), HIGHEST) - LOWEST + 1


@torch.no_grad()
def histogram(tensors: Sequence[Tensor]) -> Tensor:
    """Count the values of every tensor by binade: one row per tensor and one column per bin."""
    positions: list[int] = []
    parts: list[Tensor] = []
    for rows in lay_out(tensors):
        positions += rows.positions
        parts.append(count_rows(rows))
    return in_list_order(positions, torch.cat(parts))


def count_rows(rows: TensorRows) -> Tensor:
    """Return the counts of each tensor, one column per bin."""
    data = rows.data
    owner = torch.repeat_interleave(rows.lengths, output_size=data.shape[0])
    bins = (owner * BINS).unsqueeze(1) + _bins(data)
    counts = torch.zeros(len(rows.positions) * BINS, dtype=torch.int64, device=data.device)
    flat = bins.view(-1)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    counts = counts.view(-1, BINS)
    counts[:, ZERO] -= rows.padding.to(torch.int64)
    return counts


def _bins(data: Tensor) -> Tensor:
    # frexp's mantissa is in [0.5, 1), so its exponent is one above the binade.
    exponent = torch.frexp(data).exponent - 1
    bins = exponent.clamp(LOWEST, HIGHEST) - (LOWEST - 1)
    bins = bins.masked_fill(data == 0, ZERO)
    bins = bins.masked_fill(data.isinf(), INFINITE)
    return bins.masked_fill(data.isnan(), NAN)
