"""Have two processes bitwise the same tensors? One 64-bit number a tensor, from its bits, on the device.

The bits are taken as 64-bit words, whose upper half is folded into the lower one, and summed modulo 2**64:
first within rows of 256 elements, then over rows, each word and each row multiplied by an odd number that
depends on its position. Folding and odd factors can be undone, so a change of any one element always changes
the sum; other changes cancel with a chance of about 2**-63. Without the fold two flipped signs would: of the
topmost bit every odd factor makes the same. Sums of integers do not depend on their order, so that devices
which add in another order agree. NaN equals NaN if their bits do.

As in ``blocks``, many tensors cost the same number of operations as a few.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from halfguard.numerics.blocks import BLOCK, in_list_order, local, padded, passes

_GOLDEN = -7046029254386353131  # 2**64 divided by the golden ratio, as a signed number; it is odd
_LOWER_HALF = 0xFFFFFFFF


@torch.no_grad()
def checksums(tensors: Sequence[Tensor]) -> Tensor:
    """One int64 a tensor, from that tensor alone; of a DTensor, that of the part which lies here."""
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
    """All checksums as one; it depends on their order too."""
    return (sums * _factors("tensors", len(sums), sums.device)).sum()


def _sums(tensors: list[Tensor]) -> Tensor:
    words = padded(tensors).view(torch.int64).view(-1, BLOCK * tensors[0].element_size() // 8)
    folded = (words >> 32).bitwise_and_(_LOWER_HALF).bitwise_xor_(words)
    rows = folded.mul_(_factors("words of a row", words.shape[1], words.device)).sum(1)
    counts = torch.tensor([-(-tensor.numel() // BLOCK) for tensor in tensors])
    ends = counts.cumsum(0)
    on_device = torch.stack([counts, ends - counts]).to(rows.device, non_blocking=True)
    starts = on_device[1].repeat_interleave(on_device[0], output_size=len(rows))
    positions = torch.arange(1, len(rows) + 1, device=rows.device).sub_(starts)
    running = rows.mul_(positions.mul_(_GOLDEN).bitwise_or_(1)).cumsum(0)
    running = torch.cat([running.new_zeros(1), running])
    return running[on_device.sum(0)] - running[on_device[1]]


def _factors(of: str, count: int, device: torch.device) -> Tensor:
    return torch.tensor(_odd_numbers(of, count)).to(device, non_blocking=True)


@lru_cache(maxsize=16)
def _odd_numbers(of: str, count: int) -> list[int]:
    """Drawn, so that no two products of factors are equal; the same in every process."""
    draw = random.Random(of)  # noqa: S311 - nobody is to be kept out
    return [draw.getrandbits(64) - 2**63 | 1 for _ in range(count)]
