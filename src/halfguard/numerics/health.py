"""Measure the range, norm and special values of many tensors, as one table on the device.

For each tensor the table holds the largest and the smallest non-zero magnitude of its finite values, its
L2 norm, and how many of its values are NaN, infinite or zero, or would overflow or underflow if they were
multiplied by a loss scale and stored in a narrower format. Making the table needs no host sync, and a
number of operations that does not depend on the number of tensors (see ``tensor_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.formats import FP16, Format
from halfguard.numerics.tensor_rows import TensorRows, in_list_order, lay_out, statistics_dtype

FIELDS = (
    "absmax",  # largest finite magnitude; 0 when there is none
    "absmin",  # smallest non-zero finite magnitude; inf when there is none
    "norm",  # L2 norm of all values: NaN or inf when one of them is
    "nan",
    "posinf",
    "neginf",
    "zero",
    "overflow",  # finite, but infinite (NaN in E4M3FN) in the target format at the given scale
    "underflow",  # non-zero, but zero in the target format at the given scale
    "numel",
)
_SUMS = FIELDS[3:]


@dataclass(frozen=True)
class Health:
    """A table on the device: one row per tensor, one column per field of ``FIELDS``."""

    table: Tensor

    def __getitem__(self, field: str) -> Tensor:
        """Return one column, such as ``health["nan"]``."""
        return self.table[:, FIELDS.index(field)]

    @property
    def nonfinite(self) -> Tensor:
        """The number of NaN and infinite values in each tensor."""
        return self["nan"] + self["posinf"] + self["neginf"]

    def total(self) -> Health:
        """Combine all tensors as if they were one."""
        norm = torch.linalg.vector_norm(self["norm"])
        sums = self.table[:, len(FIELDS) - len(_SUMS) :].sum(0)
        head = torch.stack([self["absmax"].amax(), self["absmin"].amin(), norm])
        return Health(torch.cat([head, sums]).unsqueeze(0))

    def rows(self) -> list[dict[str, float]]:
        """Read the table on the host, one dict per tensor. Waits for the device."""
        return [dict(zip(FIELDS, row, strict=True)) for row in self.table.tolist()]


@torch.no_grad()
def health(
    tensors: Sequence[Tensor], *, target: Format = FP16, scale: float | Tensor = 1.0
) -> Health:
    """Measure every tensor; ``overflow`` and ``underflow`` refer to the format ``target``.

    ``scale`` may be a tensor on the device, such as the current loss scale. Thresholds are exact when it
    is a power of two, and otherwise correct to one part in 2**24.
    """
    if not tensors:
        raise UsageError("health() was given an empty list: there is nothing to measure.")
    positions: list[int] = []
    parts: list[Tensor] = []
    for rows in lay_out(tensors):
        positions += rows.positions
        parts.append(_table(rows, target, scale))
    table = parts[0] if len(parts) == 1 else torch.cat(parts)
    return Health(in_list_order(positions, table))


def _table(rows: TensorRows, target: Format, scale: float | Tensor) -> Tensor:
    data = rows.data
    magnitude = data.abs()
    overflow, underflow = _thresholds(target, scale, data)
    norms = torch.linalg.vector_norm(data, dim=1, dtype=statistics_dtype(data.device))
    scratch = torch.empty_like(data)

    def count(compare: Callable[..., Tensor], left: Tensor, right: Tensor | float) -> Tensor:
        # Comparisons write ones into the same float buffer: allocating and summing a boolean mask for
        # each costs several times as much. A row has 256 elements, so float32 counts it exactly.
        per_row = compare(left, right, out=scratch).sum(1)
        return rows.reduce_rows(per_row.to(norms.dtype), "sum", 0.0)

    posinf, neginf = count(torch.eq, data, torch.inf), count(torch.eq, data, -torch.inf)
    zero_or_padding = count(torch.eq, data, 0.0)
    columns = {
        "nan": count(torch.ne, data, data),
        "posinf": posinf,
        "neginf": neginf,
        "zero": zero_or_padding - rows.padding,
        # The midpoint rounds to infinity; in E4M3FN, which has none, it rounds to the largest value.
        "overflow": count(torch.ge if target.has_infinity else torch.gt, magnitude, overflow)
        - posinf
        - neginf,
        "underflow": count(torch.le, magnitude, underflow) - zero_or_padding,
        "numel": rows.numel,
    }
    finite = magnitude.nan_to_num_(nan=0.0, posinf=0.0)
    columns["absmax"] = rows.reduce_rows(finite.amax(1), "max", 0.0)
    smallest = finite.masked_fill_(finite == 0, torch.inf).amin(1)
    columns["absmin"] = rows.reduce_rows(smallest, "min", torch.inf)
    columns["norm"] = rows.reduce_rows(norms.square(), "sum", 0.0).sqrt()
    return torch.stack([columns[field].to(norms.dtype) for field in FIELDS], dim=1)


def _thresholds(target: Format, scale: float | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    # Filled on the device, not copied to it. Beyond the range of ``like`` they become inf and 0, which
    # no finite, non-zero value reaches: nothing overflows in a format wider than its own.
    dtype = statistics_dtype(like.device)
    over = torch.full((), target.overflow_threshold, dtype=dtype, device=like.device)
    under = torch.full((), target.underflow_threshold, dtype=dtype, device=like.device)
    return (over / scale).to(like.dtype), (under / scale).to(like.dtype)
