"""Copy many tensors into one matrix with rows of equal length, in a constant number of operations.

Reducing 2,000 gradients one by one launches every operation 2,000 times. Here the gradients are copied
into one matrix instead. Each tensor begins on a new row, and its last row is padded with zeros. A
reduction over the columns then covers all tensors at once, and a segmented reduction over the rows, which
are 256 times fewer, gives one result per tensor. The number of operations does not depend on the number
of tensors, and nothing is read back to the host.

The copy is bounded: a list is processed in passes of at most ``PASS_ELEMENTS`` elements (a larger tensor
has a pass of its own), so the number of operations grows with the bytes, not with the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import torch
from torch import Tensor

from halfguard.errors import UsageError

ROW_LENGTH = 256
PASS_ELEMENTS = 1 << 24
_PART = 2**18  # elements that ``iter_parts`` yields at a time


class TensorRows(NamedTuple):
    """Some tensors of a list, as rows of one matrix."""

    positions: list[int]  # of these tensors in the list
    data: Tensor  # [rows, ROW_LENGTH], float64 for float64 tensors and float32 for all others
    lengths: Tensor  # rows of each tensor
    numel: Tensor  # elements of each tensor, in float64 (float32 where there is no float64)

    def reduce_rows(self, rows: Tensor, how: str, initial: float) -> Tensor:
        """Reduce one value per row to one value per tensor; an empty tensor gives ``initial``."""
        return torch.segment_reduce(rows, how, lengths=self.lengths, unsafe=True, initial=initial)

    @property
    def padding(self) -> Tensor:
        """The number of zeros that were added to each tensor."""
        return self.lengths * ROW_LENGTH - self.numel


def statistics_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype for statistics: counts above 2**24 need float64, which Apple's GPUs lack."""
    return torch.float32 if device.type == "mps" else torch.float64


def lay_out(tensors: Sequence[Tensor]) -> Iterator[TensorRows]:
    """Yield the tensors as rows, in passes of one dtype and a bounded number of elements."""
    parts = [local_tensor(tensor) for tensor in tensors]
    if len({tensor.device for tensor in parts}) > 1:
        devices = sorted({str(tensor.device) for tensor in parts})
        raise UsageError(
            f"The tensors must be on one device, but they are on several ({', '.join(devices)}).",
            cure="Call the function once for each device.",
        )
    by_dtype: dict[torch.dtype, list[int]] = {}
    for position, tensor in enumerate(parts):
        if not tensor.is_floating_point():
            raise UsageError(
                f"Tensor {position} has dtype {tensor.dtype}; only floating-point tensors are measured."
            )
        by_dtype.setdefault(tensor.dtype, []).append(position)
    for positions in by_dtype.values():
        for one_pass in iter_passes(positions, parts):
            yield _to_rows(one_pass, [parts[position] for position in one_pass])


def in_list_order(positions: list[int], table: Tensor) -> Tensor:
    """Reorder ``table``, which was grouped by dtype, so that row i belongs to tensor i of the list."""
    if positions == sorted(positions):
        return table
    order = sorted(range(len(positions)), key=positions.__getitem__)
    return table[torch.tensor(order).to(table.device, non_blocking=True)]


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, sharing its memory, or the tensor itself."""
    # Looked up by name, since only halfguard.dist may import torch.distributed.
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def iter_parts(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield tensors of one size part by part, flattened: what is computed from a part takes little memory."""
    yield from zip(*(tensor.reshape(-1).split(_PART) for tensor in tensors), strict=True)  # type: ignore[no-untyped-call]


def read_all(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return single numbers and vectors, with one transfer per device. Here the host waits."""
    by_kind: dict[torch.device, dict[tuple[torch.dtype, int], list[int]]] = {}
    for position, tensor in enumerate(tensors):
        of_device = by_kind.setdefault(tensor.device, {})
        of_device.setdefault((tensor.dtype, tensor.dim()), []).append(position)
    found: list[list[float]] = [[]] * len(tensors)
    for device, of_device in by_kind.items():
        wide = statistics_dtype(device)
        parts = [
            (torch.cat if dim else torch.stack)([tensors[i] for i in some]).to(wide)
            for (_, dim), some in of_device.items()
        ]
        numbers = iter(torch.cat(parts).tolist())
        for position in chain.from_iterable(of_device.values()):
            found[position] = list(islice(numbers, tensors[position].numel()))
    return found


def iter_passes(
    positions: list[int], tensors: Sequence[Tensor], pass_elements: int = PASS_ELEMENTS
) -> Iterator[list[int]]:
    """Yield lists of positions whose tensors have at most ``pass_elements`` elements together."""
    one_pass: list[int] = []
    elements = 0
    for position in positions:
        numel = tensors[position].numel()
        if one_pass and elements + numel > pass_elements:
            yield one_pass
            one_pass, elements = [], 0
        one_pass.append(position)
        elements += numel
    yield one_pass


def _to_rows(positions: list[int], tensors: list[Tensor]) -> TensorRows:
    device, dtype = tensors[0].device, tensors[0].dtype
    sizes = [tensor.numel() for tensor in tensors]
    counts = [-(-size // ROW_LENGTH) for size in sizes]
    joined = join_padded(tensors)
    compute = torch.float64 if dtype is torch.float64 else torch.float32
    return TensorRows(
        positions=positions,
        data=joined.view(-1, ROW_LENGTH).to(compute),
        lengths=torch.tensor(counts).to(device, non_blocking=True),
        numel=torch.tensor(sizes, dtype=statistics_dtype(device)).to(device, non_blocking=True),
    )


def _at_least_1d(tensors: list[Tensor]) -> list[Tensor]:
    scalars = [tensor for tensor in tensors if tensor.dim() == 0]
    if not scalars:
        return tensors
    vectors = iter(torch.stack(scalars).unsqueeze(1).unbind())
    return [next(vectors) if tensor.dim() == 0 else tensor for tensor in tensors]


def join_padded(tensors: list[Tensor]) -> Tensor:
    """Join all elements in one vector, each tensor padded with zeros to a whole number of rows."""
    gaps = [-tensor.numel() % ROW_LENGTH for tensor in tensors]
    zeros = tensors[0].new_zeros(sum(gaps)).split_with_sizes(gaps)
    both = chain(*zip(_at_least_1d(tensors), zeros, strict=True))
    pieces = [piece for piece in both if piece.numel()]
    if not pieces:
        return tensors[0].new_zeros(0)
    # One operation for any shapes: with a single chunk, it flattens and joins the pieces.
    return torch._chunk_cat(pieces, 0, 1).view(-1)


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return the tensor on ``device``, and wait only if that is the host.

    Asked not to block, torch returns a tensor on the host before its numbers have arrived. Between devices,
    and from the host, the streams keep the order.
    """
    return tensor.to(device, dtype or tensor.dtype, non_blocking=device.type != "cpu")


_PLAIN_BYTES = (torch.bool, torch.uint8, torch.int8)  # torch.where has no float8


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is dense memory of its own, element by element."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    expanded = any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return not expanded and (tensor.dtype.itemsize > 1 or tensor.dtype in _PLAIN_BYTES)
