"""What made the numbers of a step: each tensor's operation and line, and what that operation lost.

A zero that is divided by has a history: an eps that was rounded away, a count of nothing, a difference of
equal numbers. It is noted when it happens, because the inputs are gone later. No tensor is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from halfguard.formats import dtype_name
from halfguard.precision.modes import HALF_DTYPES
from halfguard.tracing.call_arguments import tensors_in
from halfguard.tracing.operation_places import display_name
from halfguard.tracing.source import user_frame

_DEEPEST = 24  # makers that are kept behind one another
_CLOSE = 4  # units in the last place


@dataclass(frozen=True, slots=True)
class Maker:
    """An operation that made a tensor; ``lost`` tells what went wrong in it, as a clause."""

    op: str
    place: str
    of: tuple[Maker, ...] = ()
    lost: str = ""
    depth: int = field(default=0, compare=False)


class Makers:
    """Remembers the maker of each storage that is alive."""

    def __init__(self, outermost: CodeType) -> None:
        self._outermost = outermost
        self._of: dict[int, tuple[StorageWeakRef, Maker]] = {}

    def get(self, tensor: Tensor) -> Maker | None:
        """Return what made a tensor, if it was seen."""
        found = self._of.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[1]

    def note(self, func: Any, args: Sequence[Any], out: Any) -> None:
        """Note a call; views have the maker of what they show."""
        given = [tensor for one in args for tensor in tensors_in(one)]
        shown = {one.untyped_storage()._cdata for one in given}
        made = [one for one in tensors_in(out) if _is_strided(one)]
        if not func._schema.is_mutable:
            made = [one for one in made if one.untyped_storage()._cdata not in shown]
        if not made:
            return
        name = display_name(func.overloadpacket.__name__)
        before = tuple(maker for one in given if (maker := self.get(one)) is not None)
        depth = 1 + max((one.depth for one in before), default=0)
        lost = "" if func._schema.is_mutable else _lost(name, args, made[0])
        frame = user_frame(self._outermost) if lost else None  # a walk of the stack
        place = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        kept = before if depth < _DEEPEST else ()
        maker = Maker(name, place, kept, lost, depth if kept else 0)
        for one in made:
            reference = StorageWeakRef(one.untyped_storage())  # type: ignore[no-untyped-call]
            self._of[reference.cdata] = reference, maker


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


def _lost(name: str, args: Sequence[Any], out: Tensor) -> str:
    """Return what an operation lost, or an empty string."""
    look = _LOOKS.get(name)
    if look is None or not args or not isinstance(args[0], Tensor) or not out.numel():
        return ""
    return look(args, out) if out.is_floating_point() or name in _COUNTS else ""


def _rounded(number: float, tensor: Tensor) -> float:
    return float(torch.tensor(number, dtype=tensor.dtype))


def _added(args: Sequence[Any], out: Tensor) -> str:
    """Return that an eps was rounded to 0, or that nothing but rounding is left of a difference."""
    other = args[1]
    if isinstance(other, Tensor):
        return _difference(args[0], other, out)
    if isinstance(other, int | float) and other and not _rounded(other, out):
        return f"the constant {other:g} is 0 in {dtype_name(out.dtype)}"
    return ""


def _subtracted(args: Sequence[Any], out: Tensor) -> str:
    """Return that a number was rounded to the one that it is subtracted from."""
    whole = args[1] if len(args) > 1 else None
    if isinstance(whole, int | float) and whole and bool((out == 0).any()):
        return (
            f"a value is rounded to {whole:g} in {dtype_name(out.dtype)}, and the difference is 0"
        )
    return ""


def _difference(one: Tensor, other: Tensor, out: Tensor) -> str:
    if not one.is_floating_point() or not other.is_floating_point() or not other.numel():
        return ""
    distance = _CLOSE * torch.finfo(out.dtype).eps * torch.maximum(one.abs(), other.abs())
    close = (out.abs() <= distance) & (one != 0) & (other != 0)
    if not bool(close.any()):
        return ""
    largest = float(torch.where(close, one.abs(), 0).max())
    return (
        f"nearly equal values, up to {largest:.4g}, are subtracted, which leaves only rounding errors in "
        f"{dtype_name(out.dtype)} (cancellation)"
    )


def _multiplied(args: Sequence[Any], out: Tensor) -> str:
    """Return that products are too small, or that a factor was rounded to 1."""
    one, other = args[0], args[1] if len(args) > 1 else args[0]
    if isinstance(other, int | float) and not isinstance(other, bool):
        if other != 1 and _rounded(other, out) == 1 and out.dtype in HALF_DTYPES:
            return f"the factor {other!r} is 1 in {dtype_name(out.dtype)} and has no effect"
        other = torch.tensor(float(other))
    if not isinstance(other, Tensor) or not one.is_floating_point():
        return ""
    gone = bool(((out == 0) & (one != 0) & (other != 0)).any())
    return f"the product is too small for {dtype_name(out.dtype)} and became 0" if gone else ""


def _powered(args: Sequence[Any], out: Tensor) -> str:
    """Return that powers are too small."""
    exponent = args[1] if len(args) > 1 else None
    if not isinstance(exponent, int | float) or exponent <= 0:
        return ""
    gone = bool(((out == 0) & (args[0] != 0)).any())
    return (
        f"the power {exponent:g} is too small for {dtype_name(out.dtype)} and became 0"
        if gone
        else ""
    )


def _limited(args: Sequence[Any], out: Tensor) -> str:
    """Return that a limit was rounded, so that it does not keep what it is for."""
    for limit in args[1:]:
        if not isinstance(limit, int | float) or limit in (0, 1, -1):
            continue
        if (rounded := _rounded(limit, out)) in (0, 1, -1):
            return f"the limit {limit!r} of clamp is {rounded:g} in {dtype_name(out.dtype)} and has no effect"
    return ""


def _cast(args: Sequence[Any], out: Tensor) -> str:
    given = args[0]
    if out.dtype not in HALF_DTYPES or given.dtype == out.dtype or not given.is_floating_point():
        return ""
    gone = bool(((out == 0) & (given != 0)).any())
    return f"values that are too small for {dtype_name(out.dtype)} became 0" if gone else ""


def _counted(args: Sequence[Any], out: Tensor) -> str:
    """Return that a sum counts nothing: it is taken of a mask that selects nothing."""
    if not bool((out == 0).any()):
        return ""
    given = args[0]
    if given.numel() == 0:
        return "a sum over nothing is 0"
    is_mask = given.dtype == torch.bool or bool(((given == 0) | (given == 1)).all())
    if is_mask and (not given.is_floating_point() or bool((given == 1).any())):
        return "nothing is selected and a count is 0"
    if bool((given.abs().sum(*args[1:2]) == 0).any()):
        return "the numbers that are added are all 0"
    return ""


def _saturated(_args: Sequence[Any], out: Tensor) -> str:
    low, high = bool((out == 0).any()), bool((out == 1).any())
    ends = " and ".join(end for end, seen in (("0", low), ("1", high)) if seen)
    return f"a result is rounded to {ends} in {dtype_name(out.dtype)}" if ends else ""


def _at_zero(text: str) -> Callable[[Sequence[Any], Tensor], str]:
    return lambda _args, out: text if bool((out == 0).any()) else ""


_NORM = _at_zero("the norm of a vector of zeros is 0")
_SPREAD = _at_zero("the deviation of equal numbers is 0")


_COUNTS = ("sum", "count_nonzero")
_LOOKS: dict[str, Callable[[Sequence[Any], Tensor], str]] = {
    "add": _added,
    "sub": _added,
    "rsub": _subtracted,
    "mul": _multiplied,
    "pow": _powered,
    "square": _multiplied,
    "clamp": _limited,
    "clamp_min": _limited,
    "clamp_max": _limited,
    "to": _cast,
    "sum": _counted,
    "count_nonzero": _counted,
    "sigmoid": _saturated,
    "softmax": _saturated,
    "tanh": _saturated,
    "exp": _saturated,
    "linalg_vector_norm": _NORM,
    "norm": _NORM,
    "std": _SPREAD,
    "var": _SPREAD,
    "relu": _at_zero("relu returns 0"),
}
