"""Where do the values lie? One bin a binade, for every tensor of a list, in counts that simply add up.

A floating-point format is a window of binades: FP16 holds 2**-24 to 2**15, and a loss scale of 2**k moves
the values k bins to the right. So a histogram of exponents answers every question about range at once,
for any format and any scale, after the fact. The bins are those of float32 (float64 values beyond them
fall into the outermost ones) and three more: zero, infinity and NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.numerics.blocks import Blocks, in_list_order, lay_out

LOWEST, HIGHEST = -149, 127  # the binades of float32, subnormals included
ZERO, INFINITE, NAN = 0, HIGHEST - LOWEST + 2, HIGHEST - LOWEST + 3
BINS = NAN + 1


def bin_of(binade: int) -> int:
    """The bin of the values v with 2**binade <= abs(v) < 2**(binade + 1)."""
    return min(max(binade, LOWEST), HIGHEST) - LOWEST + 1


@dataclass(frozen=True)
class Histogram:
    """Counts, one row a tensor and one column a bin; still on the device."""

    counts: Tensor

    def __add__(self, other: Histogram) -> Histogram:
        """The histogram of both: the same tensors seen at another step, or on another rank."""
        return Histogram(self.counts + other.counts)

    def total(self) -> Histogram:
        """All tensors as if they were one."""
        return Histogram(self.counts.sum(0, keepdim=True))

    def between(self, low: int, high: int) -> Tensor:
        """How many values of each tensor lie in the binades ``low`` to ``high``, both included."""
        return self.counts[:, bin_of(low) : bin_of(high) + 1].sum(1)


@torch.no_grad()
def histogram(tensors: Sequence[Tensor]) -> Histogram:
    """Count the values of every tensor by binade."""
    if not tensors:
        raise UsageError("histogram() was given an empty list: there is nothing to count.")
    positions: list[int] = []
    parts: list[Tensor] = []
    for blocks in lay_out(tensors):
        positions += blocks.positions
        parts.append(_counts(blocks))
    return Histogram(in_list_order(positions, torch.cat(parts)))


def _counts(blocks: Blocks) -> Tensor:
    data, lengths = blocks.data, blocks.lengths
    owner = torch.repeat_interleave(lengths, output_size=data.shape[0])
    bins = (owner * BINS).unsqueeze(1) + _bins(data)
    counts = torch.zeros(len(blocks.positions) * BINS, dtype=torch.int64, device=data.device)
    flat = bins.view(-1)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    counts = counts.view(-1, BINS)
    counts[:, ZERO] -= blocks.padding.to(torch.int64)
    return counts


def _bins(data: Tensor) -> Tensor:
    # frexp takes a mantissa from [0.5, 1), hence one binade above ours.
    exponent = torch.frexp(data).exponent - 1
    bins = exponent.clamp(LOWEST, HIGHEST) - (LOWEST - 1)
    bins = bins.masked_fill(data == 0, ZERO)
    bins = bins.masked_fill(data.isinf(), INFINITE)
    return bins.masked_fill(data.isnan(), NAN)
