"""16-bit tensors that a script adds to in place (averages of weights, sums), and that stay as they are.

In a few steps each write is done a second time in FP32, from the same numbers. An element is stuck if it was
the same from the first of these steps to the last one, although all writes would have moved it in one
direction, so far that rounding does not explain it. Half weights, which optimizers write, are compared before
and after a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from halfguard.formats import dtype_name
from halfguard.investigation.advice import describe_place
from halfguard.investigation.bus import HookBus
from halfguard.investigation.detectors import OFTEN, Detector
from halfguard.investigation.passes import Made, Misused, Place
from halfguard.precision.modes import HALF_DTYPES
from halfguard.replaying.function_modes import user_place
from halfguard.tracing.call_arguments import tensors_in, undispatched

_MOST_ELEMENTS = 5_000_000  # that are copied
_COPIES = (
    "copy_",
    "_foreach_copy_",
)  # of numbers that are kept elsewhere, unless they were computed here


@dataclass
class _Written:
    """What is known of one tensor."""

    tensor: Tensor
    place: Place | None
    first: Tensor  # its numbers before the first step that was looked at
    begun: int  # finished backward passes then
    old: Tensor | None  # before this step
    least: Tensor | None = (
        None  # change in FP32 that was the smallest of all steps; 0 if its sign varies
    )
    steps: int = 0
    ended: int = 0

    def note(self, exact: Tensor, backward: int) -> None:
        """Note what one step would have changed in FP32."""
        assert self.old is not None  # noqa: S101 - it was written in this step
        change, least = exact - self.old.float(), self.least
        if least is not None:
            same = change.sign() == least.sign()
            change = torch.where(change.abs() < least.abs(), change, least) * same
        self.least, self.old, self.ended = change, None, backward
        self.steps += 1

    def stuck(self) -> int:
        """Return how many elements have not moved, and should have."""
        assert self.least is not None  # noqa: S101 - after the first step
        distance = torch.finfo(self.tensor.dtype).eps * self.first.float().abs()
        far = self.least.abs() * (self.ended - self.begun) > LostIncrements.FAR * distance
        return int((far & (distance > 0) & (self.tensor.detach() == self.first)).sum())


class LostUpdates(Detector):
    """Elements of half weights that a step of torch's own optimizers leaves as they are."""

    code = "HG402"
    # Of the elements whose gradient is not 0: so many are wrong, so many may be.
    _MOST_LOST, _MANY_LOST = 0.9, 0.5
    _MOST_ELEMENTS = 5_000_000  # of parameters that are copied

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        self.is_on = False
        # A parameter, a copy, and where it has a gradient.
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []
        self._shares: list[float] = []
        self._place: Place | None = None
        self._dtype = ""

    def on_stepping(self, optimizer: Any) -> None:
        self._before = []
        if not self.is_on or not type(optimizer).__module__.startswith("torch.optim"):
            return
        room = self._MOST_ELEMENTS
        with self.bus.unobserved():
            # A learning rate of 0 freezes a group.
            groups = [g for g in optimizer.param_groups if "lr" not in g or float(g["lr"]) != 0]
            for parameter in (p for group in groups for p in group["params"]):
                room -= parameter.numel()
                if parameter.dtype in HALF_DTYPES and parameter.grad is not None and room > 0:
                    has_gradient = parameter.grad.to_dense() != 0
                    self._before.append((parameter, parameter.detach().clone(), has_gradient))
                    self._dtype = dtype_name(parameter.dtype)

    def on_stepped(self, _optimizer: Any) -> None:
        if not self._before:
            return
        self.is_on = False
        with self.bus.unobserved():
            lost = sum(int(((p == old) & has).sum()) for p, old, has in self._before)
            moved = sum(int(has.sum()) for *_, has in self._before)
        self._before = []
        if moved:
            self._shares.append(lost / moved)
            self._place = self._place or user_place()

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        if len(self._shares) < OFTEN or median(self._shares) < self._MANY_LOST:
            return
        certain = min(self._shares) >= self._MOST_LOST
        percent = math.floor(100 * (min if certain else median)(self._shares))
        share = "All" if percent == 100 else f"{'At least ' if certain else ''}{percent}%"
        text = (
            f"{share} of the updates of 16-bit weights are lost in each step because they are "
            "smaller than the spacing of 16-bit values. Keep the weights in FP32 and run the "
            "model under torch.autocast."
        )
        place, dtype = self._place, self._dtype
        scaled = self.bus.scaler is not None and dtype == "float16"  # a fused step does not raise
        code = "HG401" if scaled else self.code
        lost = Misused(kind="lost updates", code=code, sentence=text, place=place, dtype=dtype)
        yield lost.model_copy(update={"unsure": not certain})


class LostIncrements(Detector, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Repeats writes into half tensors in FP32, in the steps that an audit has chosen."""

    code = "HG619"
    FAR = 8  # distances to the next number
    _MANY = 0.1  # of all elements that a line writes

    def __init__(self, bus: HookBus) -> None:
        Detector.__init__(self, bus)
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self._exact: MutableMapping[Tensor, Tensor] = WeakIdKeyDictionary()
        self._written: dict[Any, _Written] = {}
        self._room = _MOST_ELEMENTS
        self._steps = False  # an optimizer, whose weights and state are not looked at
        self._is_on = False

    def on_stepping(self, _optimizer: Any) -> None:
        self._steps = True

    def on_stepped(self, _optimizer: Any) -> None:
        self._steps = False

    def begin(self) -> None:
        """Look at the writes until the next backward pass."""
        self._is_on = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def on_backward(self, _call: Any) -> None:
        if not self._is_on:
            return
        self._is_on = False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        with self.bus.unobserved():
            for one in self._written.values():
                exact = self._exact.get(one.tensor)
                if one.old is not None and exact is not None:
                    one.note(exact, self.bus.backward)
                one.old = None
        self._exact.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        writes = func._schema.is_mutable
        given = (one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
        half = any(one.dtype in HALF_DTYPES for one in given)
        draws = torch.Tag.nondeterministic_seeded in func.tags
        matters = writes or not torch.is_grad_enabled()  # the rest is of a forward pass
        if not half or self._steps or draws or not matters:
            if writes and args:
                self._forget(args[0])
            return func(*args, **kwargs)
        with undispatched(), torch.no_grad():
            if writes:
                self._keep(func, args)
            wide, named = tree_map(self._wide, (args, kwargs))
        out = func(*args, **kwargs)
        try:
            with undispatched(), torch.no_grad():
                result = func(*wide, **named)
        except RuntimeError:  # a kernel for one dtype
            self._forget(args[0] if writes else ())
            return out
        pairs = zip(tensors_in(args[0] if writes else out), tensors_in(wide[0] if writes else result),
                    strict=False)  # fmt: skip
        for one, exact in pairs:
            if one.dtype in HALF_DTYPES and one.shape == exact.shape:
                self._exact[one] = exact
        return out

    def _wide(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype in HALF_DTYPES:
            known = self._exact.get(value)
            return value.float() if known is None else known
        return torch.float32 if isinstance(value, torch.dtype) and value in HALF_DTYPES else value

    def _forget(self, written: Any) -> None:
        """Forget what tensors should be: they are given numbers that do not depend on those before."""
        gone = set(map(id, tensors_in(written)))
        for tensor in tensors_in(written):
            self._exact.pop(tensor, None)
        for one in self._written.values():
            if id(one.tensor) in gone:
                one.old = None

    def _keep(self, func: Any, args: Any) -> None:
        """Keep the numbers of the tensors that a call is about to write."""
        copies = func.overloadpacket.__name__ in _COPIES
        if copies and not any(one in self._exact for one in tree_leaves(args[1:2])):
            self._forget(args[0])
            return
        for tensor in tensors_in(args[0]):
            if tensor.dtype not in HALF_DTYPES or tensor.requires_grad:
                continue
            shape = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
            key = tensor.untyped_storage()._cdata, *shape
            known = self._written.get(key)
            if known is None and tensor.numel() <= self._room:
                self._room -= tensor.numel()
                numbers = tensor.detach().clone()
                self._written[key] = _Written(
                    tensor, user_place(), numbers, self.bus.backward, numbers
                )
            elif known is not None and known.old is None:
                known.tensor, known.old = tensor, tensor.detach().clone()

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        lines: dict[Place, list[_Written]] = {}
        for one in self._written.values():
            if one.place is not None and one.steps >= OFTEN:
                lines.setdefault(one.place, []).append(one)
        with self.bus.unobserved():
            for place, tensors in lines.items():
                count = sum(one.tensor.numel() for one in tensors)
                stuck = sum(one.stuck() for one in tensors)
                if stuck < self._MANY * count:
                    continue
                dtype = dtype_name(tensors[0].tensor.dtype)
                passes = max(one.ended - one.begun for one in tensors)
                yield Misused(
                    kind="lost increments",
                    code=self.code,
                    place=place,
                    dtype=dtype,
                    sentence=(
                        f"{stuck} of {count} values in {dtype} did not change in {passes} "
                        "backward passes because each increment is smaller than the spacing of "
                        f"{dtype} values and is rounded away. Keep the values in FP32: "
                        f"{describe_place(place)}."
                    ),
                )
                return
