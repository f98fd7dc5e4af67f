"""Have two processes bitwise the same tensors? One 64-bit number a tensor, from its bits, on the device.

The bits are taken as 64-bit integers and summed modulo 2**64, first within rows of 256 elements, then over
rows, each row multiplied by an odd number that depends on its position in the tensor. An odd factor can be
undone, so a change of any one element always changes the sum; other changes cancel with a chance of about
2**-64, unless they only move whole words within a row. Sums of integers do not depend on their order, so
that devices which add in another order agree. NaN equals NaN if their bits do.

As in ``blocks``, many tensors cost the same number of operations as a few.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from halfguard.numerics.blocks import BLOCK, in_list_order, local, padded, passes

_GOLDEN = -7046029254386353131  # 2**64 divided by the golden ratio, as a signed number; it is odd


@torch.no_grad()
def checksums(tensors: Sequence[Tensor]) -> Tensor:
    """One int64 a tensor; of a DTensor, that of the part which lies here."""
    parts = [local(tensor) for tensor in tensors]
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, part in enumerate(parts):
        by_kind.setdefault((part.device, part.dtype), []).append(position)
    order: list[int] = []
    sums: list[Tensor] = []
    for positions in by_kind.values():
        for some in passes(positions, parts):
            order += some
            sums.append(_sums([parts[position] for position in some]))
    together = torch.cat([s.to(sums[0].device, non_blocking=True) for s in sums])
    return in_list_order(order, together)


def combined(sums: Tensor) -> Tensor:
    """All checksums as one."""
    return (sums * _weights(torch.arange(len(sums), device=sums.device))).sum()


def _sums(tensors: list[Tensor]) -> Tensor:
    words = padded(tensors).view(torch.int64).view(-1, BLOCK * tensors[0].element_size() // 8)
    rows = words.sum(1)
    counts = torch.tensor([-(-tensor.numel() // BLOCK) for tensor in tensors])
    ends = counts.cumsum(0)
    on_device = torch.stack([counts, ends - counts]).to(rows.device, non_blocking=True)
    starts = on_device[1].repeat_interleave(on_device[0], output_size=len(rows))
    running = (rows * _weights(torch.arange(len(rows), device=rows.device) - starts)).cumsum(0)
    running = torch.cat([running.new_zeros(1), running])
    return running[on_device.sum(0)] - running[on_device[1]]


def _weights(positions: Tensor) -> Tensor:
    return ((positions + 1) * _GOLDEN).bitwise_or_(1)
