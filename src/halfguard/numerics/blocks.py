"""Many tensors as one: laid out in rows of equal length, in a constant number of operations.

Reducing 2,000 gradients one by one costs 2,000 times the launch of every operation. Here they are copied
into one matrix instead; each tensor begins on a new row and its last row is filled up with zeros. A
reduction over the columns then serves all of them at once, and a segmented reduction over the rows, which
are 256 times fewer, gives one result a tensor. How many operations that takes does not depend on how many
tensors there are, and nothing is read back to the host.

The copy is bounded: a list is worked off in passes of at most ``PASS_ELEMENTS`` elements (a larger tensor
has a pass of its own), so the number of operations grows with the bytes, not with the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from halfguard.errors import UsageError

BLOCK = 256
PASS_ELEMENTS = 1 << 24


class Blocks(NamedTuple):
    """Some of the tensors of a list, as rows."""

    positions: list[int]  # which tensors of the list these are
    data: Tensor  # [rows, BLOCK], float64 for float64 tensors and float32 for all others
    lengths: Tensor  # how many rows each tensor has
    numel: Tensor  # how many elements each tensor has, float64 (float32 where there is no float64)

    def per_tensor(self, rows: Tensor, how: str, initial: float) -> Tensor:
        """Reduce one value a row to one value a tensor; ``initial`` is the answer for an empty one."""
        return torch.segment_reduce(rows, how, lengths=self.lengths, unsafe=True, initial=initial)

    @property
    def padding(self) -> Tensor:
        """How many zeros were added to each tensor."""
        return self.lengths * BLOCK - self.numel


def wide(device: torch.device) -> torch.dtype:
    """The dtype of statistics: counts above 2**24 need float64, which Apple's GPUs lack."""
    return torch.float32 if device.type == "mps" else torch.float64


def lay_out(tensors: Sequence[Tensor]) -> Iterator[Blocks]:
    """Yield the tensors as rows, in passes of one dtype and a bounded number of elements."""
    parts = [local(tensor) for tensor in tensors]
    if len({tensor.device for tensor in parts}) > 1:
        devices = sorted({str(tensor.device) for tensor in parts})
        raise UsageError(
            f"The tensors lie on several devices ({', '.join(devices)}); one table lies on one.",
            cure="Call it once for each device.",
        )
    by_dtype: dict[torch.dtype, list[int]] = {}
    for position, tensor in enumerate(parts):
        if not tensor.is_floating_point():
            raise UsageError(
                f"Tensor {position} has dtype {tensor.dtype}; only floating point has a health."
            )
        by_dtype.setdefault(tensor.dtype, []).append(position)
    for positions in by_dtype.values():
        for some in passes(positions, parts):
            yield _rows(some, [parts[position] for position in some])


def in_list_order(positions: list[int], table: Tensor) -> Tensor:
    """Undo the grouping by dtype: row i of the result belongs to tensor i of the list."""
    if positions == sorted(positions):
        return table
    order = sorted(range(len(positions)), key=positions.__getitem__)
    return table[torch.tensor(order).to(table.device, non_blocking=True)]


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies here: a DTensor's shard."""
    # Asked for by name, since only halfguard.dist knows torch.distributed.
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def passes(positions: list[int], tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Positions in lists whose tensors have at most ``PASS_ELEMENTS`` elements together."""
    some: list[int] = []
    elements = 0
    for position in positions:
        numel = tensors[position].numel()
        if some and elements + numel > PASS_ELEMENTS:
            yield some
            some, elements = [], 0
        some.append(position)
        elements += numel
    yield some


def _rows(positions: list[int], tensors: list[Tensor]) -> Blocks:
    device, dtype = tensors[0].device, tensors[0].dtype
    sizes = [tensor.numel() for tensor in tensors]
    counts = [-(-size // BLOCK) for size in sizes]
    joined = padded(tensors)
    compute = torch.float64 if dtype is torch.float64 else torch.float32
    return Blocks(
        positions=positions,
        data=joined.view(-1, BLOCK).to(compute),
        lengths=torch.tensor(counts).to(device, non_blocking=True),
        numel=torch.tensor(sizes, dtype=wide(device)).to(device, non_blocking=True),
    )


def _at_least_1d(tensors: list[Tensor]) -> list[Tensor]:
    scalars = [tensor for tensor in tensors if tensor.dim() == 0]
    if not scalars:
        return tensors
    vectors = iter(torch.stack(scalars).unsqueeze(1).unbind())
    return [next(vectors) if tensor.dim() == 0 else tensor for tensor in tensors]


def padded(tensors: list[Tensor]) -> Tensor:
    """All elements in one vector, each tensor filled up with zeros to a whole number of rows."""
    gaps = [-tensor.numel() % BLOCK for tensor in tensors]
    zeros = tensors[0].new_zeros(sum(gaps)).split_with_sizes(gaps)
    both = chain(*zip(_at_least_1d(tensors), zeros, strict=True))
    pieces = [piece for piece in both if piece.numel()]
    if not pieces:
        return tensors[0].new_zeros(0)
    # One operation for tensors of any shapes: with a single chunk it flattens and joins them.
    return torch._chunk_cat(pieces, 0, 1).view(-1)
