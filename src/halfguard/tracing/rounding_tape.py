"""A step as a tape of operations, repeated in float64, and swept backward for the effect of each rounding.

Let a step run in 16 bits. The tape keeps what each operation read and made, forward and backward. It is then
repeated twice in float64: on the inputs that the operation had, which gives its own rounding error e, and on
exact inputs from the start of the step, which gives the exact loss and gradients, with the same random
numbers and the same decisions (integers and conditions are those of the 16-bit step).

One sweep from the end to the beginning gives the derivative a of the loss with respect to each result, and
e times a, summed, is what the rounding of that result does to the loss. The same sweep, started from the
gradients along their measured error, gives what it does to them; there it passes the operations of the
backward pass as well. Derivatives are taken halfway between the 16-bit and the exact numbers: so the sum is
right up to errors of third order, and not only of second.

Numbers belong to storages, as in ``shadow_watch``: a view needs no entry, and a tensor that autograd saved is
found again. What a later operation overwrites is copied before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from halfguard.tracing.call_arguments import (
    WIDE,
    Call,
    OperationMode,
    bind_arguments,
    filled,
    repeat_call,
    results_of,
    undispatched,
)
from halfguard.tracing.operation_places import ModuleStack, OperationPlace, OperationPlaces
from halfguard.tracing.origins import UNWRITTEN
from halfguard.tracing.rounding_substitutes import substitute_for
from halfguard.tracing.source import user_frame
from halfguard.tracing.storage_regions import (
    as_reals,
    covers_storage,
    has_digits,
    is_all_finite,
    real_size,
    region_of,
    storage_key,
    whole_storage,
)

HALF = (torch.float16, torch.bfloat16)
JUMPS = frozenset({"sgn", "sign", "floor", "ceil", "round", "trunc"})
# The gradient that arrives, times a slope at the second argument that jumps.
KINKED_BACKWARD = frozenset({
    "threshold_backward", "leaky_relu_backward", "hardtanh_backward", "hardsigmoid_backward",
    "hardswish_backward", "elu_backward",
})  # fmt: skip
_EXACT = {
    **dict.fromkeys((*HALF, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}


@dataclass(eq=False, slots=True)
class Held:
    """A tensor at one moment of the step; ``exact`` if the exact step has other numbers there."""

    tensor: Tensor
    key: int  # of its storage
    exact: Tensor | None = None

    @property
    def wide(self) -> Tensor:
        """The numbers of the 16-bit step."""
        return self.tensor.to(_EXACT.get(self.tensor.dtype, self.tensor.dtype))

    @property
    def right(self) -> Tensor:
        """The numbers of the exact step."""
        return self.wide if self.exact is None else self.exact

    @property
    def middle(self) -> Tensor:
        """The numbers halfway between the 16-bit and the exact step, in FP32: a derivative needs no more."""
        dtype = WIDE.get(self.tensor.dtype, self.tensor.dtype)
        near = self.tensor.to(dtype)
        if self.exact is None:
            return near
        middle = torch.lerp(near, self.exact.to(dtype), 0.5)
        if is_all_finite(middle):
            return middle
        return torch.where(middle.isfinite(), middle, self.exact.to(dtype))


@dataclass(eq=False, slots=True)
class Entry:
    """One operation of the step: what it read and made, and the rounding errors of what it made."""

    func: Any
    values: list[tuple[Any, Any]]  # arguments of the schema, with held tensors
    positional: int
    place: OperationPlace
    is_cast: bool
    repeats: bool  # False: random, or not torch's own; its results count as exact
    inputs: list[Held]
    results: list[Held] = field(default_factory=list)
    errors: list[Tensor | None] = field(default_factory=list)
    is_data: bool = False  # a cast of weights, or of numbers that nothing has rounded before

    @property
    def packet(self) -> str:
        name: str = self.func.overloadpacket.__name__
        return name

    @property
    def is_complex(self) -> bool:
        return any(one.tensor.is_complex() for one in self.inputs)

    @property
    def rounds(self) -> bool:
        """True if a half result is not exact."""
        both = zip(self.results, self.errors, strict=True)
        return any(error is not None and one.tensor.dtype in HALF for one, error in both)

    def run(
        self,
        read: Callable[[Held], Tensor],
        *,
        dtypes: Mapping[torch.dtype, torch.dtype] = _EXACT,
        decomposed: bool = False,
    ) -> list[Tensor]:
        """Repeat the operation on other numbers; return what it makes, then what it writes to."""
        fill = partial(filled, leaf=Held, read=read, dtypes=dtypes)
        if (substitute := substitute_for(self.packet)) is not None:
            given = {argument.name: fill(value) for argument, value in self.values}
            return substitute(given, [one.wide for one in self.results])
        func = decomposition_table[self.func] if decomposed else self.func
        return repeat_call(func, self.values, self.positional, fill)


class RoundingTape(OperationMode):  # type: ignore[no-untyped-call]
    """Keeps every operation of the step that runs under it; nothing, if that is more than ``max_bytes``."""

    def __init__(
        self, modules: ModuleStack, outermost: CodeType, max_bytes: float = math.inf
    ) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.forward_entries = 0
        self.not_judged: dict[str, None] = {}  # in order, each once
        self._held: dict[int, list[Held]] = {}  # by storage, those that share its memory
        self._alive: dict[int, Tensor] = {}  # so that no other storage gets the same key
        self._places = OperationPlaces(modules, outermost)
        self._outermost = outermost
        self._numbers: dict[int, tuple[int, Tensor]] = {}  # exact ones, with the size of an element
        self._same_branches = True
        self._room = max_bytes

    @property
    def is_full(self) -> bool:
        """True if the step was too large to be kept."""
        return self._room < 0

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        packet = func.overloadpacket.__name__
        place = self._places.of(packet, user_frame(self._outermost))
        if func.is_view or packet in UNWRITTEN or self.is_full:
            return func(*args, **kwargs)
        with undispatched():
            call = Call(func, args, kwargs)
            inputs: list[Held] = []
            values = [(a, self._hold_in(v, inputs)) for a, v in bind_arguments(func, args, kwargs)]
            for one in call.tensors:
                if one.is_written or one.name.startswith("running_"):
                    self._keep_overwritten(one.tensor)
        out = func(*args, **kwargs)
        with undispatched():
            results = results_of(out, call.written)
            if any(map(has_digits, results)):
                repeats = call.can_repeat or packet == "native_dropout"
                cast = packet in ("_to_copy", "copy_") and results[-1].dtype in HALF
                entry = Entry(func, values, len(args), place, cast, repeats, inputs)
                entry.results = [self.hold(one) for one in results]
                self.entries.append(entry)
        return out

    def hold(self, tensor: Tensor) -> Held:
        """Keep a tensor as it is now."""
        key = storage_key(tensor)
        held = Held(tensor.detach(), key)
        self._held.setdefault(key, []).append(held)
        if key not in self._alive:
            self._alive[key] = held.tensor
            self._room -= tensor.untyped_storage().nbytes()
            if self.is_full:
                for kept in (self.entries, self._held, self._alive):
                    kept.clear()
        return held

    def _hold_in(self, value: Any, inputs: list[Held]) -> Any:
        if isinstance(value, Tensor):
            inputs.append(self.hold(value))
            return inputs[-1]
        if isinstance(value, list | tuple):
            return [self._hold_in(item, inputs) for item in value]
        return value

    def _keep_overwritten(self, tensor: Tensor) -> None:
        sharing = self._held.pop(storage_key(tensor), [])
        copies: dict[int, Tensor] = {}
        for held in sharing:
            one = held.tensor
            size = one.element_size()
            if size not in copies or copies[size].dtype != one.dtype:
                copies[size] = whole_storage(one).clone()
            held.tensor = copies[size].as_strided(one.size(), one.stride(), one.storage_offset())

    @torch.no_grad()
    def repeat(self, *, same_branches: bool = True) -> None:
        """Compute the rounding error of every result, and the exact step.

        With ``same_branches`` the slope of a kinked function, such as relu, is that of the 16-bit step. Else
        the exact step has its own: then the gradients of numbers close to a kink jump.
        """
        self._same_branches = same_branches
        for entry in self.entries:
            self._read_inputs(entry)
            self._find_errors(entry)
            self._write_results(entry, keep=False)

    @torch.no_grad()
    def repeat_with(self, keeps: Callable[[Entry], bool]) -> None:
        """Compute the step again, exactly but for the rounding errors of some entries."""
        self._numbers.clear()
        for entry in self.entries:
            self._read_inputs(entry)
            self._write_results(entry, keep=keeps(entry))

    def depth(self, ends: Iterable[Held], ignores: Callable[[Entry], bool]) -> int:
        """Return the number of roundings on the longest way to ``ends``, but for some entries."""
        of: dict[int, int] = {}
        for entry in self.entries:
            depth = max((of.get(one.key, 0) for one in entry.inputs), default=0)
            depth += entry.rounds and not ignores(entry)
            of |= {one.key: depth for one in entry.results}
        return max((of.get(one.key, 0) for one in ends), default=0)

    def _read_inputs(self, entry: Entry) -> None:
        for one in entry.inputs:
            one.exact = self._read(one)
        if self._same_branches and entry.packet in KINKED_BACKWARD | {"_prelu_kernel_backward"}:
            entry.inputs[1].exact = None
        elif self._same_branches and entry.packet in JUMPS and not entry.is_complex:
            entry.inputs[0].exact = None

    def _find_errors(self, entry: Entry) -> None:
        entry.errors = [None] * len(entry.results)
        deviates = any(one.exact is not None for one in entry.inputs)
        entry.is_data = entry.is_cast and not deviates
        if not entry.repeats:
            if deviates and not entry.packet.endswith("_like"):
                self.note("is random or not a torch operation and was not repeated", entry)
            return
        if entry.place.phase == "backward" and not any(
            r.tensor.dtype in HALF for r in entry.results
        ):
            return  # FP32 in the backward pass: nothing beside the errors of half
        try:
            own = entry.run(lambda one: one.wide)
        except Exception as error:  # noqa: BLE001 - an operation without a kernel for float64
            self.note(f"cannot be repeated ({type(error).__name__})", entry)
            entry.repeats = False
            return
        for index, (held, mine) in enumerate(zip(entry.results, own, strict=True)):
            if has_digits(held.tensor):
                apart = held.wide - mine
                total = float(apart.abs().sum())
                if not math.isfinite(total):
                    apart = torch.where(apart.isfinite(), apart, 0.0)
                entry.errors[index] = apart if total else None

    def _write_results(self, entry: Entry, *, keep: bool) -> None:
        deviates = entry.repeats and any(one.exact is not None for one in entry.inputs)
        right = entry.run(lambda one: one.right) if deviates else []
        for index, (held, error) in enumerate(zip(entry.results, entry.errors, strict=True)):
            if not has_digits(held.tensor):
                continue
            kept = error if keep else None
            if deviates:
                exact = right[index].detach().to(held.wide.dtype)
                held.exact = exact if kept is None else exact + kept
            else:
                held.exact = None if error is None or keep else held.wide - error
            self._write(held)

    def note(self, reason: str, entry: Entry) -> None:
        """Say once that the effect of an entry is not known."""
        self.not_judged.setdefault(f"{entry.packet} {reason}{entry.place.source.where}")

    def exact(self, held: Held) -> Tensor:
        """Return the exact numbers of a tensor at the end of the step."""
        held.exact = self._read(held)
        return held.right

    def _read(self, held: Held) -> Tensor | None:
        size, numbers = self._numbers.get(held.key, (0, None))
        if numbers is None or size != real_size(held.tensor):
            return None
        if not has_digits(held.tensor):
            return None
        return region_of(numbers, held.tensor)

    def _write(self, held: Held) -> None:
        size, numbers = self._numbers.get(held.key, (0, None))
        if held.exact is None and numbers is None:
            return
        exact = held.wide if held.exact is None else held.exact
        if covers_storage(held.tensor):
            if held.exact is None:
                del self._numbers[held.key]
            else:
                self._numbers[held.key] = real_size(held.tensor), as_reals(exact)
            return
        if numbers is None or size != real_size(held.tensor):
            numbers = as_reals(whole_storage(held.tensor)).double()
        numbers = numbers.clone()  # others hold what was there before
        region_of(numbers, held.tensor).copy_(exact)
        self._numbers[held.key] = real_size(held.tensor), numbers
