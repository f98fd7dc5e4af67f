"""Numbers in 16 bits that are added to again and again (counts, sums, averages of weights), and stop moving.

The arithmetic of these tensors is done a second time in FP32, over the whole run: each result is followed by
its numbers in FP32, from one operation to the next. What was written in another way begins anew. Rounding to
and fro stays small; increments that are rounded away add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from halfguard.formats import dtype_name
from halfguard.investigation.advice import describe_place
from halfguard.investigation.bus import HookBus, is_transformed
from halfguard.investigation.detectors import Detector
from halfguard.investigation.passes import Made, Misused, Place
from halfguard.precision.modes import HALF_DTYPES
from halfguard.replaying.function_modes import map_arguments, user_place, writes_first
from halfguard.tracing.call_arguments import tensors_in, undispatched

_MOST_ELEMENTS, _MOST_TENSORS = 5_000_000, 2_000  # that are followed
_ARITHMETIC = {
    *("add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "div", "idiv", "truediv"),
    *("itruediv", "lerp", "addcmul", "addcdiv", "copy", "clone", "getitem", "setitem"),
    "index_put",
}  # fmt: skip
_SUMS = {"index_add", "scatter_add"}  # one call adds many values


@dataclass
class _Followed:
    """A tensor, as it was after its last operation."""

    storage: StorageWeakRef
    value: Tensor
    exact: Tensor
    depth: int  # operations that led to it, one after the other
    root: int  # the first of them

    @property
    def is_alive(self) -> bool:
        """Return whether the tensor is still in use."""
        return not self.storage.expired()  # type: ignore[no-untyped-call]


@dataclass
class _Wrong:
    """How wrong a tensor is."""

    tensor: Tensor
    exact: Tensor
    far: Tensor  # where it is
    depth: int
    unsure: bool  # a weight, or one sum: only FP32 can tell if it matters


class LostIncrements(Detector, TorchFunctionMode):
    """Follows the arithmetic of 16-bit tensors outside of graphs and optimizers."""

    code = "HG619"
    _FAR = 8  # distances to the next number
    _LEAST = 2.0**-5  # of a number
    _MANY = 0.1  # of the elements that a line writes, or of their sum
    _DEEP = 16  # operations

    def __init__(self, bus: HookBus) -> None:
        Detector.__init__(self, bus)
        TorchFunctionMode.__init__(self)
        self._followed: dict[Any, _Followed] = {}
        self._wrong: dict[Place, dict[int, _Wrong]] = {}
        self._roots = self._used = 0
        self._steps = False  # an optimizer, whose weights and state are not followed

    def on_stepping(self, _optimizer: Any) -> None:
        self._steps = True

    def on_stepped(self, _optimizer: Any) -> None:
        self._steps = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        plain = name.removeprefix("_foreach").strip("_")
        known = plain in _ARITHMETIC | _SUMS and "out" not in kwargs
        if not known or self._steps or is_transformed():
            return func(*args, **kwargs)
        writes = writes_first(name)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        half = [one for one in (tensors_in(args[0]) if writes else given) if _is_half(one)]
        if not half or not all(map(_is_plain, given)):
            return func(*args, **kwargs)
        if writes and len(half) < len(list(tensors_in(args[0]))):
            return func(*args, **kwargs)
        with undispatched(), torch.no_grad():
            deepest = max(map(self._depth, filter(_is_half, given)))
            wide, named = map_arguments(self._wide, (args, kwargs))
        out = func(*args, **kwargs)
        try:
            with undispatched(), torch.no_grad():
                result = func(*wide, **named)
                pairs = zip(tensors_in(args[0] if writes else out),
                            tensors_in(wide[0] if writes else result), strict=False)  # fmt: skip
                for one, exact in pairs:
                    if _is_half(one) and _is_plain(one) and one.shape == exact.shape:
                        is_new, adds = name != "__getitem__", plain in _SUMS
                        self._follow(one, exact, deepest, is_new=is_new, adds=adds)
        except (RuntimeError, TypeError):  # a kernel for one dtype
            pass
        return out

    def _depth(self, tensor: Tensor) -> tuple[int, int]:
        """Return how deep a tensor is, and its root."""
        one = self._followed.get(_key(tensor))
        if one is None or not bool((one.value == tensor).any()):
            return 0, 0
        return one.depth, one.root

    def _wide(self, value: Any) -> Any:
        """Return the FP32 numbers of a half tensor; where others were written, these."""
        if isinstance(value, Tensor) and _is_half(value):
            one, now = self._followed.get(_key(value)), value.detach().float()
            return now if one is None else torch.where(one.value == value, one.exact, now)
        return torch.float32 if isinstance(value, torch.dtype) and value in HALF_DTYPES else value

    def _follow(
        self, tensor: Tensor, exact: Tensor, deepest: tuple[int, int], *, is_new: bool, adds: bool
    ) -> None:
        key = _key(tensor)
        if key not in self._followed and not self._has_room(tensor.numel()):
            return
        if key in self._followed and not is_new:
            return
        depth, root = deepest[0] + (self._DEEP if adds else 1), deepest[1]
        if not root:
            self._roots += 1
            root = self._roots
        weak = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._followed[key] = _Followed(weak, tensor.detach().clone(), exact, depth, root)
        if is_new and depth >= self._DEEP:
            self._judge(self._followed[key], adds=adds)

    def _has_room(self, count: int) -> bool:
        """Return whether a tensor may be followed; those that are gone make room."""
        for _ in range(2):
            if self._used + count <= _MOST_ELEMENTS and len(self._followed) < _MOST_TENSORS:
                self._used += count
                return True
            alive = {key: one for key, one in self._followed.items() if one.is_alive}
            self._followed, self._used = alive, sum(one.value.numel() for one in alive.values())
        return False

    def _judge(self, one: _Followed, *, adds: bool) -> None:
        """Note where a tensor is farther from its FP32 numbers than rounding to and fro explains."""
        place, kind = user_place(), torch.finfo(one.value.dtype)
        if place is None:
            return
        value, error = one.value.float().abs(), (one.exact - one.value.float()).abs()
        spacing = (kind.eps * value).clamp(min=kind.smallest_normal * kind.eps)
        far = error > max(self._FAR, math.sqrt(one.depth)) * spacing
        far &= (error > self._LEAST * one.exact.abs()) & one.value.isfinite()
        before = self._wrong.setdefault(place, {}).get(one.root)
        if before is None or one.depth > before.depth:
            weights = {p.untyped_storage()._cdata for p in self.bus.parameters}
            unsure = adds or one.storage.cdata in weights
            self._wrong[place][one.root] = _Wrong(one.value, one.exact, far, one.depth, unsure)

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        with self.bus.unobserved():
            for place, tensors in self._wrong.items():
                yield from self._at(place, list(tensors.values()))

    def _at(self, place: Place, tensors: list[_Wrong]) -> Iterator[Misused]:
        stuck = sum(int(one.far.sum()) for one in tensors)
        count = sum(one.far.numel() for one in tensors)
        lost = sum(float(((one.exact - one.tensor) * one.far).abs().sum()) for one in tensors)
        all_in_all = sum(float(one.exact.abs().sum()) for one in tensors)
        if stuck < self._MANY * count and not lost > self._MANY * all_in_all:
            return
        worst = max(tensors, key=lambda one: int(one.far.sum()))
        at = int(((worst.exact - worst.tensor).abs() * worst.far).argmax())
        dtype = dtype_name(worst.tensor.dtype)
        is_now, would_be = (f"{t.flatten()[at]:g}" for t in (worst.tensor, worst.exact))
        if count == 1:
            what, added_to, example, kept = f"A value in {dtype} stops", "it", "it", "it"
        else:
            what, added_to = f"{stuck} of {count} values in {dtype} stop", "them"
            example, kept = "for example, a value", "the values"
        text = (
            f"{what} changing because what is added to {added_to} is smaller than the spacing of {dtype} "
            f"values and is rounded away: {example} is {is_now}, and would be {would_be} in FP32. "
            f"Keep {kept} in FP32: {describe_place(place)}."
        )
        lost_here = Misused(
            kind="lost increments", code=self.code, place=place, dtype=dtype, sentence=text
        )
        yield lost_here.model_copy(update={"unsure": any(one.unsure for one in tensors)})


def _key(tensor: Tensor) -> tuple[Any, ...]:
    shape = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return tensor.untyped_storage()._cdata, tensor.dtype, *shape


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype in HALF_DTYPES


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor holds numbers, and is in no graph."""
    in_graph = torch.is_grad_enabled() and tensor.requires_grad
    is_own = type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
    return is_own and not in_graph and not tensor.is_meta and tensor.layout is torch.strided
