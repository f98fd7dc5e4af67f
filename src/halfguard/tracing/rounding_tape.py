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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from halfguard.tracing.call_arguments import (
    WIDE,
    Call,
    bind_arguments,
    is_written,
    results_of,
    undispatched,
)
from halfguard.tracing.operation_places import ModuleStack, OperationPlace, OperationPlaces
from halfguard.tracing.origins import UNWRITTEN
from halfguard.tracing.source import user_frame

HALF = (torch.float16, torch.bfloat16)
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
        if _is_finite(middle):
            return middle
        return torch.where(middle.isfinite(), middle, self.exact.to(dtype))


Seeds = Iterable[tuple[Held, Tensor]]


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
        if (substitute := _substitute(self.packet)) is not None:
            given = {a.name: _filled(value, read, dtypes) for a, value in self.values}
            return substitute(given, [one.wide for one in self.results])
        written: list[Tensor] = []
        values = []
        for argument, value in self.values:
            filled = _filled(value, read, dtypes)
            if is_written(argument) or argument.name.startswith("running_"):
                filled = _copied(filled)
            if is_written(argument):
                written += _tensors(filled)
            values.append(False if argument.name == "half_to_float" else filled)
        kwargs = {a.name: v for (a, _), v in zip(self.values, values, strict=True)}
        args = [kwargs.pop(a.name) for a, _ in self.values[: self.positional]]
        func = decomposition_table[self.func] if decomposed else self.func
        return results_of(func(*args, **kwargs), written)


def _filled(
    value: Any, read: Callable[[Held], Tensor], dtypes: Mapping[torch.dtype, torch.dtype]
) -> Any:
    if isinstance(value, Held):
        return read(value)
    if isinstance(value, list | tuple):
        return [_filled(item, read, dtypes) for item in value]
    return dtypes.get(value, value) if isinstance(value, torch.dtype) else value


def _copied(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return value.clone() if isinstance(value, Tensor) else value


def _tensors(value: Any) -> list[Tensor]:
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, Tensor)]


def _dropout(given: Mapping[str, Any], results: Sequence[Tensor]) -> list[Tensor]:
    kept = results[1].to(given["input"].dtype)
    return [given["input"] * kept / (1 - given["p"] if given["p"] < 1 else 1), results[1]]


def _attention(given: Mapping[str, Any]) -> Tensor:
    """Compute attention as written: fused kernels have no second derivative, and some no float64."""
    query, key, value = given["query"], given["key"], given["value"]
    if (groups := query.shape[-3] // key.shape[-3]) > 1:
        key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
    scale = given.get("scale")
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if given.get("is_causal"):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    mask = given.get("attn_mask", given.get("attn_bias"))
    if mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    mixed: Tensor = scores.softmax(-1) @ value
    return mixed


def _attend(given: Mapping[str, Any], results: Sequence[Tensor]) -> list[Tensor]:
    return [_attention(given), *results[1:]]


def _attend_backward(given: Mapping[str, Any], results: Sequence[Tensor]) -> list[Tensor]:
    names = ("query", "key", "value")
    arriving = given.get("grad_out", given.get("grad_out_"))
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [given[name] for name in names]
        inputs = [one if one.requires_grad else one.detach().requires_grad_() for one in inputs]
        out = _attention({**given, **dict(zip(names, inputs, strict=True))})
        grads = torch.autograd.grad(out, inputs, arriving, create_graph=further)
    return [*grads, *results[3:]]


def _grouped_product(given: Mapping[str, Any], _results: Sequence[Tensor]) -> list[Tensor]:
    """Multiply the groups of rows of experts one by one; the fused kernel has no float64."""
    left, right = given["self"], given["mat2"]
    if given.get("offs") is None:
        return [left @ right]
    ends = given["offs"].tolist()
    slices = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if left.dim() == right.dim() == 2:
        return [torch.stack([left[:, one] @ right[one] for one in slices])]
    if left.dim() == 2:
        parts = [left[one] @ right[index] for index, one in enumerate(slices)]
        rest = left[ends[-1] :] @ torch.zeros_like(right[0])
        return [torch.cat([*parts, rest])]
    parts = [left[index] @ right[:, one] for index, one in enumerate(slices)]
    return [torch.cat([*parts, torch.zeros_like(left[0]) @ right[:, ends[-1] :]], -1)]


def _substitute(
    packet: str,
) -> Callable[[Mapping[str, Any], Sequence[Tensor]], list[Tensor]] | None:
    if packet == "native_dropout":
        return _dropout
    if packet == "_grouped_mm":
        return _grouped_product
    if packet.startswith("_scaled_dot_product"):
        return _attend_backward if packet.endswith("_backward") else _attend
    return None


class RoundingTape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps every operation of the step that runs under it."""

    def __init__(self, modules: ModuleStack, outermost: CodeType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[Entry] = []
        self.forward_entries = 0
        self.not_judged: dict[str, None] = {}  # in order, each once
        self._held: dict[int, list[Held]] = {}  # by storage, those that share its memory
        self._alive: dict[int, Tensor] = {}  # so that no other storage gets the same key
        self._places = OperationPlaces(modules, outermost)
        self._outermost = outermost
        self._numbers: dict[int, tuple[int, Tensor]] = {}  # exact ones, with the size of an element
        self._same_branches = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket.__name__
        place = self._places.of(packet, user_frame(self._outermost))
        if func.is_view or packet in UNWRITTEN:
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
            if any(map(_has_digits, results)):
                repeats = call.can_repeat or packet == "native_dropout"
                cast = packet in ("_to_copy", "copy_") and results[-1].dtype in HALF
                entry = Entry(func, values, len(args), place, cast, repeats, inputs)
                entry.results = [self.hold(one) for one in results]
                self.entries.append(entry)
        return out

    def hold(self, tensor: Tensor) -> Held:
        """Keep a tensor as it is now."""
        key = _key(tensor)
        held = Held(tensor.detach(), key)
        self._held.setdefault(key, []).append(held)
        self._alive.setdefault(key, held.tensor)
        return held

    def _hold_in(self, value: Any, inputs: list[Held]) -> Any:
        if isinstance(value, Tensor):
            inputs.append(self.hold(value))
            return inputs[-1]
        if isinstance(value, list | tuple):
            return [self._hold_in(item, inputs) for item in value]
        return value

    def _keep_overwritten(self, tensor: Tensor) -> None:
        sharing = self._held.pop(_key(tensor), [])
        copies: dict[int, Tensor] = {}
        for held in sharing:
            one = held.tensor
            size = one.element_size()
            if size not in copies or copies[size].dtype != one.dtype:
                copies[size] = _flat(one).clone()
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
        if self._same_branches and entry.packet in _KINKED_BACKWARD | {"_prelu_kernel_backward"}:
            entry.inputs[1].exact = None
        elif self._same_branches and entry.packet in _JUMPS and not _is_complex(entry):
            entry.inputs[0].exact = None

    def _find_errors(self, entry: Entry) -> None:
        entry.errors = [None] * len(entry.results)
        deviates = any(one.exact is not None for one in entry.inputs)
        entry.is_data = entry.is_cast and not deviates
        if not entry.repeats:
            if deviates and not entry.packet.endswith("_like"):
                self._note("is random or not torch's own, and was not repeated", entry)
            return
        if entry.place.phase == "backward" and not any(
            r.tensor.dtype in HALF for r in entry.results
        ):
            return  # FP32 in the backward pass: nothing beside the errors of half
        try:
            own = entry.run(lambda one: one.wide)
        except Exception as error:  # noqa: BLE001 - an operation without a kernel for float64
            self._note(f"cannot be repeated ({type(error).__name__})", entry)
            entry.repeats = False
            return
        for index, (held, mine) in enumerate(zip(entry.results, own, strict=True)):
            if _has_digits(held.tensor):
                apart = held.wide - mine
                total = float(apart.abs().sum())
                if not math.isfinite(total):
                    apart = torch.where(apart.isfinite(), apart, 0.0)
                entry.errors[index] = apart if total else None

    def _write_results(self, entry: Entry, *, keep: bool) -> None:
        deviates = entry.repeats and any(one.exact is not None for one in entry.inputs)
        right = entry.run(lambda one: one.right) if deviates else []
        for index, (held, error) in enumerate(zip(entry.results, entry.errors, strict=True)):
            if not _has_digits(held.tensor):
                continue
            kept = error if keep else None
            if deviates:
                exact = right[index].detach().to(held.wide.dtype)
                held.exact = exact if kept is None else exact + kept
            else:
                held.exact = None if error is None or keep else held.wide - error
            self._write(held)

    def _note(self, reason: str, entry: Entry) -> None:
        source = entry.place.source
        where = f" at {source.file}:{source.line}" if source.file else ""
        self.not_judged.setdefault(f"{entry.packet} {reason}{where}")

    def exact(self, held: Held) -> Tensor:
        """Return the exact numbers of a tensor at the end of the step."""
        held.exact = self._read(held)
        return held.right

    def _read(self, held: Held) -> Tensor | None:
        size, numbers = self._numbers.get(held.key, (0, None))
        if numbers is None or size != _unit(held.tensor):
            return None
        if not _has_digits(held.tensor):
            return None
        return _region(numbers, held.tensor)

    def _write(self, held: Held) -> None:
        size, numbers = self._numbers.get(held.key, (0, None))
        if held.exact is None and numbers is None:
            return
        exact = held.wide if held.exact is None else held.exact
        if _covers(held.tensor):
            if held.exact is None:
                del self._numbers[held.key]
            else:
                self._numbers[held.key] = _unit(held.tensor), _as_reals(exact)
            return
        if numbers is None or size != _unit(held.tensor):
            numbers = _as_reals(_flat(held.tensor)).double()
        numbers = numbers.clone()  # others hold what was there before
        _region(numbers, held.tensor).copy_(exact)
        self._numbers[held.key] = _unit(held.tensor), numbers

    def sweep(
        self, of_loss: Seeds, of_gradients: Seeds
    ) -> Iterable[tuple[Entry, list[tuple[float, float] | None]]]:
        """Yield each entry, from the last, with the sum of the effects of its errors, and of their squares.

        Two effects are followed at once: on the loss, and on the gradients. Each is the sum of the seeds'
        tensors times their weights.
        """
        both = Adjoints(of_loss), Adjoints(of_gradients)
        for index, entry in reversed([*enumerate(self.entries)]):
            passed = both if index < self.forward_entries else both[1:]
            found = [[one.take(r.tensor, r.key) for r in entry.results] for one in passed]
            if all(one is None for each in found for one in each):
                continue
            effects = [_effect(entry.errors, each) for each in found]
            yield entry, effects if len(effects) == 2 else [None, *effects]
            self._pass_on(entry, found, passed)

    def _pass_on(
        self, entry: Entry, found: list[list[Tensor | None]], adjoints: Sequence[Adjoints]
    ) -> None:
        """Add to the adjoints of what an entry read."""
        # What no rounding has changed needs no adjoint.
        wanted = [one for one in entry.inputs if one.exact is not None]
        if not wanted or not entry.repeats:
            return
        try:
            passed = _through(entry, wanted, found)
        except Exception as error:  # noqa: BLE001 - an operation without a derivative
            self._note(f"has no derivative ({type(error).__name__})", entry)
            return
        for adjoint, grads in zip(adjoints, passed, strict=True):
            for one, grad in zip(wanted, grads, strict=True):
                if grad is not None:
                    adjoint.add(one.tensor, one.key, grad)


def _effect(
    errors: Sequence[Tensor | None], adjoints: Sequence[Tensor | None]
) -> tuple[float, float] | None:
    total, square = 0.0, 0.0
    for error, adjoint in zip(errors, adjoints, strict=True):
        if error is not None and adjoint is not None:
            product = (error * adjoint.conj()).real if error.is_complex() else error * adjoint
            total += float(product.sum())
            square += float(torch.dot(flat := product.reshape(-1), flat))
    return total, square


Grads = Sequence[Tensor | None]


def _through(entry: Entry, wanted: Sequence[Held], found: Sequence[Grads]) -> Sequence[Grads]:
    """Return the adjoints of what an entry read, from those of what it made, for each of several."""
    if entry.packet in _OF_ONE_NUMBER and len(wanted) == 1 and not _is_complex(entry):
        slope = _secant(entry, wanted[0])
        return [[None if one[0] is None else one[0] * slope] for one in found]
    if entry.packet in _SLOPE_BACKWARD:
        slopes = _secant_backward(entry, wanted)
        return [[None if o[0] is None else o[0] * slope for slope in slopes] for o in found]
    decomposes = entry.func in decomposition_table
    # The formula for a norm takes its statistics as given.
    if not decomposes or "norm" not in entry.packet:
        try:
            return _derivative(entry, wanted, found, decomposed=False)
        except (RuntimeError, NotImplementedError):
            if not decomposes:
                raise
    return _derivative(entry, wanted, found, decomposed=True)


def _products(entry: Entry, wanted: Sequence[Held], found: Sequence[Grads]) -> Sequence[Grads]:
    """Pass through a matrix product without computing it again."""
    left, right = entry.inputs[:2]
    factors = {
        id(left): right.middle.mT.conj() if left in wanted else None,
        id(right): left.middle.mT.conj() if right in wanted else None,
    }

    def passed(one: Held, adjoint: Tensor | None) -> Tensor | None:
        factor = factors[id(one)]
        if adjoint is None or factor is None:
            return None
        return adjoint @ factor if one is left else factor @ adjoint

    return [[passed(one, each[0]) for one in wanted] for each in found]


@torch.enable_grad()
def _derivative(
    entry: Entry, wanted: Sequence[Held], found: Sequence[Grads], *, decomposed: bool
) -> Sequence[Grads]:
    if entry.packet in ("mm", "bmm"):
        return _products(entry, wanted, found)
    leaves = {id(one): one.middle.detach().requires_grad_() for one in wanted}
    out = entry.run(
        lambda one: leaves[id(one)] if id(one) in leaves else one.middle,  # noqa: SIM401
        dtypes=WIDE,
        decomposed=decomposed,
    )
    passed: list[Grads] = []
    for each in found:
        used = [
            (made, adjoint.to(made.dtype))
            for made, adjoint in zip(out, each, strict=True)
            if adjoint is not None and made.requires_grad
        ]
        if not used:
            passed.append([None] * len(wanted))
            continue
        outputs, weights = zip(*used, strict=True)
        passed.append(
            torch.autograd.grad(
                outputs,
                list(leaves.values()),
                weights,
                retain_graph=len(found) > 1,
                allow_unused=True,
            )
        )
    return passed


# Functions of one number: between the 16-bit and the exact number, the slope of the line through both is
# right, also across a kink or where the function bends within the difference.
_JUMPS = frozenset({"sgn", "sign", "floor", "ceil", "round", "trunc"})
_OF_ONE_NUMBER = _JUMPS | {
    "relu", "relu_", "abs", "clamp", "clamp_min", "clamp_max", "hardtanh", "leaky_relu", "threshold",
    "hardsigmoid", "hardswish", "elu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "reciprocal",
    "softplus", "gelu", "silu", "sin", "cos", "erf",
}  # fmt: skip
# The gradient that arrives, times the slope at the second argument.
_KINKED_BACKWARD = frozenset({
    "threshold_backward", "leaky_relu_backward", "hardtanh_backward", "hardsigmoid_backward",
    "hardswish_backward", "elu_backward",
})  # fmt: skip
_SLOPE_BACKWARD = _KINKED_BACKWARD | {
    "sigmoid_backward", "tanh_backward", "softplus_backward", "gelu_backward", "silu_backward",
}  # fmt: skip
_SAME = 1e-9  # relative difference below which two numbers have no slope between them


def _slope(rise: Tensor, run: Tensor) -> Tensor:
    return torch.where(run == 0, 0.0, rise / torch.where(run == 0, 1.0, run))


def _secant(entry: Entry, one: Held) -> Tensor:
    ends = one.wide, one.right
    apart = ends[0] - ends[1]
    rise = entry.run(lambda o: o.wide)[0] - entry.run(lambda o: o.right if o is one else o.wide)[0]
    near = apart.abs() <= _SAME * ends[1].abs()
    slope = _slope(rise, apart)
    if not bool(near.any()):
        return slope
    ones = torch.ones_like(rise, dtype=torch.float32)
    smooth = _derivative(entry, [one], [[ones]], decomposed=False)[0][0]
    return torch.where(near, 0.0 if smooth is None else smooth, slope)


def _secant_backward(entry: Entry, wanted: Sequence[Held]) -> Sequence[Tensor]:
    """Return the slopes of grad * slope(x): for ``grad`` the mean one, for x what a changed one changes."""
    grad, x = entry.inputs[:2]
    unit = torch.ones_like(grad.wide)
    steep = entry.run(lambda o: unit if o is grad else o.wide)[0]
    even = entry.run(lambda o: unit if o is grad else o.right)[0]
    changed = grad.middle * _slope(steep - even, x.wide - x.right)
    return [(steep + even) / 2 if one is grad else changed for one in wanted]


class Adjoints:
    """The derivative of one number with respect to every storage, at one moment of the sweep."""

    def __init__(self, seeds: Seeds) -> None:
        self._of: dict[int, tuple[int, Tensor]] = {}
        for held, weights in seeds:
            self.add(held.tensor, held.key, weights)

    def add(self, tensor: Tensor, key: int, adjoint: Tensor) -> None:
        """Add to the adjoint of a region, in FP32."""
        adjoint = adjoint.to(torch.complex64 if adjoint.is_complex() else torch.float32)
        if not _is_finite(adjoint):
            adjoint = adjoint.nan_to_num(0.0, 0.0, 0.0)
        size, flat = self._of.get(key, (0, None))
        if flat is None or size != _unit(tensor):
            if _covers(tensor):
                own = adjoint.conj() if tensor.is_conj() else adjoint
                self._of[key] = _unit(tensor), _as_reals(own).clone()
                return
            count = tensor.untyped_storage().nbytes() // _unit(tensor)
            flat = torch.zeros(count, device=tensor.device)
            self._of[key] = _unit(tensor), flat
        region = _region(flat, tensor)
        shared = [d for d, s in enumerate(tensor.stride()) if s == 0 and tensor.shape[d] > 1]
        for dim in shared:  # an expanded tensor: all of its elements are one
            adjoint, region = adjoint.sum(dim, keepdim=True), region.narrow(dim, 0, 1)
        if _overlaps(region):
            index = torch.arange(flat.numel(), device=flat.device)
            flat.index_add_(0, _region(index, tensor).reshape(-1), adjoint.reshape(-1))
        else:
            region.add_(adjoint)

    def take(self, tensor: Tensor, key: int) -> Tensor | None:
        """Return the adjoint of a region that was written here; before that it had other numbers."""
        size, flat = self._of.get(key, (0, None))
        if flat is None or size != _unit(tensor):
            return None
        region = _region(flat, tensor)
        if tensor.numel() * (2 if tensor.is_complex() else 1) == flat.numel():
            del self._of[key]
            return region
        taken = region.clone()
        region.zero_()
        return taken


def _key(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided:
        return id(tensor)
    key: int = tensor.untyped_storage()._cdata
    return key


def _unit(tensor: Tensor) -> int:
    """Return the size of a real number of the tensor, in bytes."""
    return tensor.element_size() // (2 if tensor.is_complex() else 1)


def _flat(tensor: Tensor) -> Tensor:
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((count,), (1,), 0)


def _as_reals(tensor: Tensor) -> Tensor:
    tensor = tensor.contiguous().resolve_conj()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def _is_complex(entry: Entry) -> bool:
    return any(one.tensor.is_complex() for one in entry.inputs)


def _is_finite(tensor: Tensor) -> bool:
    return math.isfinite(abs(tensor.sum().item()))


def _has_digits(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _region(numbers: Tensor, tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        numbers = torch.view_as_complex(numbers.view(-1, 2))
    region = numbers.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return region.conj() if tensor.is_conj() else region


def _covers(tensor: Tensor) -> bool:
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return whole and tensor.is_contiguous() and not tensor.storage_offset()


def _overlaps(tensor: Tensor) -> bool:
    """Return whether two elements of a view may be the same number, as in a sliding window."""
    reach = 1
    sizes = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
    for stride, size in sizes:
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False
