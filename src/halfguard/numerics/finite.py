"""Find tensors that are not finite, or too large for a format, at the price of one maximum each.

The largest magnitude of a tensor is NaN if one of its values is, so it answers for all of them.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from halfguard.formats import Format
from halfguard.numerics.tensor_rows import local_tensor, to_device

# An infinite number often means "none yet", as the best metric of ReduceLROnPlateau does. Not here:
_FINITE_NUMBERS = frozenset({"lr", "initial_lr", "weight_decay", "momentum", "eps", "scale"})


@dataclass(frozen=True)
class Poison:
    """One tensor or number that must not be saved."""

    name: str
    nan: int = 0
    infinite: int = 0
    overflow: int = 0
    largest: str = ""
    """The largest value of the format that ``overflow`` values exceed."""

    def plus(self, other: Poison) -> Poison:
        """Return both together: two shards of one tensor."""
        return Poison(
            self.name,
            self.nan + other.nan,
            self.infinite + other.infinite,
            self.overflow + other.overflow,
            self.largest or other.largest,
        )

    def __str__(self) -> str:
        kinds = {
            "NaN": self.nan,
            "infinite": self.infinite,
            f"beyond {self.largest}": self.overflow,
        }
        return f"{self.name} ({', '.join(f'{n} {kind}' for kind, n in kinds.items() if n)})"


@torch.no_grad()
def find_nonfinite(tensors: Iterable[Tensor]) -> tuple[list[int], Tensor]:
    """Return the positions of tensors that can hold NaN, and a code for each of them, on the device.

    The code is 1 for a tensor with a NaN, 2 for one with an infinity and no NaN, and 0 for a finite one.
    """
    by_kind: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = {}
    for position, tensor in enumerate(tensors):
        part = _floating_values(tensor)
        if part is not None and part.numel():
            by_kind.setdefault((part.device, part.dtype), {})[position] = part
    positions = [position for group in by_kind.values() for position in group]
    codes: list[Tensor] = []
    for group in by_kind.values():
        largest = torch.stack(torch._foreach_norm(list(group.values()), math.inf))
        code = largest.isnan().long() + 2 * largest.isinf().long()
        codes.append(to_device(code, codes[0].device if codes else code.device))
    return positions, torch.cat(codes) if codes else torch.zeros(0, dtype=torch.long)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether every floating-point tensor is finite, with a single read of the device."""
    positions, codes = find_nonfinite(tensors)
    return not positions or not bool(codes.any())


_isfinite = torch.isfinite  # before anybody replaces it


@torch.no_grad()
def bad_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors that hold NaN or infinity, at the price of one sum each.

    A sum cannot hide a bad number, and is faster than a maximum. Only one that is not finite itself, and may
    have overflowed, is looked at exactly.
    """
    by_device: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
    for tensor in tensors:
        part = _floating_values(tensor)
        if part is not None and part.numel():
            by_device.setdefault(part.device, []).append((local_tensor(tensor), part))
    bad: list[Tensor] = []
    for group in by_device.values():
        sums = torch.stack([part.sum(dtype=_wide(part)).to(torch.float32) for _, part in group])
        if not bool(_isfinite(sums).all()):
            bad += [tensor for tensor, part in group if not bool(_isfinite(part).all())]
    return bad


def _wide(part: Tensor) -> torch.dtype:
    return torch.float32 if part.itemsize < 4 else part.dtype


def storages(tensors: Iterable[Tensor]) -> set[int]:
    """Return the identities of the storages of dense tensors."""
    return {t.untyped_storage()._cdata for t in tensors if t.layout is torch.strided}


def has_nan(tensors: Iterable[Tensor]) -> bool:
    """Return whether any tensor holds a NaN, with a single read of the device."""
    positions, codes = find_nonfinite(tensors)
    return bool(positions) and bool((codes == 1).any())


@torch.no_grad()
def find_poison(
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, float] | None = None,
    *,
    target: Format | None = None,
    allow_infinite: Iterable[str] = (),
) -> list[Poison]:
    """Return what must not be saved, in the order of the names.

    ``target`` is the format in which floating-point tensors are to be stored, None for their own. Infinite
    tensors are accepted where a pattern of ``allow_infinite`` matches the name; NaN is never accepted.
    """
    patterns = tuple(allow_infinite)
    values = {name: _floating_values(tensor) for name, tensor in tensors.items()}
    checked = {name: part for name, part in values.items() if part is not None and part.numel()}
    suspects = _not_below(checked, math.inf if target is None else target.overflow_threshold)
    found = {name: _count(name, checked[name], target) for name in suspects}
    found |= {name: _judge_number(name, number) for name, number in (numbers or {}).items()}
    allowed = {n for n in found if any(fnmatch.fnmatchcase(n, pattern) for pattern in patterns)}
    return [
        poison
        for name, poison in found.items()
        if poison.nan or poison.overflow or (poison.infinite and name not in allowed)
    ]


def _floating_values(tensor: Tensor) -> Tensor | None:
    """Return the values that this rank holds, as a strided real tensor; None if they cannot be NaN."""
    if tensor.is_meta or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    part = strided_values(tensor)
    return torch.view_as_real(part.resolve_conj()) if part.is_complex() else part


def strided_values(tensor: Tensor) -> Tensor:
    """Return the values of this rank as a strided tensor, each once; float8 is bfloat16, which holds it."""
    part = local_tensor(tensor.detach())
    if part.layout is torch.sparse_coo:
        part = part._values()
    elif part.is_mkldnn:
        part = part.to_dense()
    elif part.is_nested or part.layout is not torch.strided:
        part = part.values()
    strides = part.stride()
    if 0 in strides:  # expanded
        part = part[tuple(slice(1) if stride == 0 else slice(None) for stride in strides)]
    if part.is_floating_point() and part.itemsize == 1:  # torch has no maximum of float8
        part = part.to(torch.bfloat16)
    return part


def _not_below(values: Mapping[str, Tensor], limit: float) -> list[str]:
    """Return the names of tensors with a magnitude that is NaN or not below ``limit``.

    The device is read once for all tensors of a dtype.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, part in values.items():
        groups.setdefault((part.device, part.dtype), []).append(name)
    bad: set[str] = set()
    for names in groups.values():
        # Not the norm: on a CPU aminmax takes a seventh of its time. Both pass NaN on.
        lows, highs = zip(*(torch.aminmax(values[name]) for name in names), strict=True)
        largest = torch.maximum(torch.stack(lows).neg(), torch.stack(highs))
        bad.update(n for n, m in zip(names, largest.tolist(), strict=True) if not m < limit)
    return [name for name in values if name in bad]


def _count(name: str, part: Tensor, target: Format | None) -> Poison:
    nan, infinite = part.isnan(), part.isinf()
    overflow = 0
    if target is not None:
        beyond = (part.abs() >= target.overflow_threshold) & ~nan & ~infinite
        overflow = int(beyond.sum())
    return Poison(
        name,
        nan=int(nan.sum()),
        infinite=int(infinite.sum()),
        overflow=overflow,
        largest="" if target is None else f"{target.largest:g}",
    )


def _judge_number(name: str, number: float) -> Poison:
    strict = name.rpartition(".")[2] in _FINITE_NUMBERS
    return Poison(name, nan=int(math.isnan(number)), infinite=int(math.isinf(number) and strict))
