"""Compare tensors of two processes bit by bit: one 64-bit checksum per tensor, computed on the device.

The bits are read as 64-bit words and summed modulo 2**64: first within rows of 256 elements, then over rows.
Before it is added, each word is multiplied by an odd number that depends on its position, its upper half is
folded into the lower one, and it is multiplied again; each row is multiplied. All of this is invertible, so a
change of any one element always changes the sum. Without the fold, two flipped signs would cancel: 2**63
times any odd factor is 2**63 again. Without the product before it, a tensor whose elements all change alike
may keep its sum: the two halves of each word are equal then. Sums of integers do not depend on their order,
so devices that add in another order agree. Two NaNs are equal if their bits are.

As in ``tensor_rows``, many tensors cost the same number of operations as a few.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from halfguard.numerics import tensor_rows
from halfguard.numerics.tensor_rows import to_device

_GOLDEN = -7046029254386353131  # 2**64 divided by the golden ratio, as a signed number; it is odd
_LOWER_HALF = 0xFFFFFFFF


@torch.no_grad()
def checksums(tensors: Sequence[Tensor], pass_elements: int = tensor_rows.PASS_ELEMENTS) -> Tensor:
    """Return one int64 per tensor, computed from that tensor alone; for a DTensor, from its local shard.

    It takes twice the memory of the tensors of one pass.
    """
    parts = [tensor_rows.local_tensor(tensor) for tensor in tensors]
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, part in enumerate(parts):
        by_kind.setdefault((part.device, part.dtype), []).append(position)
    order: list[int] = []
    sums: list[Tensor] = []
    for positions in by_kind.values():
        for one_pass in tensor_rows.iter_passes(positions, parts, pass_elements):
            order += one_pass
            sums.append(_sums([parts[position] for position in one_pass]))
    all_sums = torch.cat([to_device(s, sums[0].device) for s in sums])
    return tensor_rows.in_list_order(order, all_sums)


def combine(sums: Tensor) -> Tensor:
    """Combine all checksums into one, which also depends on their order."""
    return (sums * _factors("tensors", len(sums), sums.device)).sum()


def _sums(tensors: list[Tensor]) -> Tensor:
    words_per_row = tensor_rows.ROW_LENGTH * tensors[0].element_size() // 8
    words = tensor_rows.join_padded(tensors).view(torch.int64).view(-1, words_per_row)
    factors = _factors("words of a row", words_per_row, words.device)
    words.mul_(factors)  # a copy: in place
    words.bitwise_xor_((words >> 32).bitwise_and_(_LOWER_HALF))
    rows = words.mul_(factors).sum(1)
    counts = torch.tensor([-(-tensor.numel() // tensor_rows.ROW_LENGTH) for tensor in tensors])
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
    """Draw random factors, so that no two products of them are equal; the same in every process."""
    generator = random.Random(of)  # noqa: S311 - this is not for security
    return [generator.getrandbits(64) - 2**63 | 1 for _ in range(count)]
