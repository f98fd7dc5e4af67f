"""Watch a step for operations that leave the range of half, and shadow in FP32 what they touched.

An operation is run again in FP32 only if its half output holds infinities or zeros, or if one of its inputs
has a shadow. From then on two FP32 results are compared: of the real inputs, and of their shadows. Where they
agree the fault has had no effect, and the shadow ends; a mask of -1e9, infinite in half, ends at its softmax.

Underflow counts in the forward pass only, and from a share of the elements on: what vanishes in the backward
pass is a matter of the loss scale.

A shadow belongs to a storage, not to a tensor: views, in-place operations and tensors saved for the backward
pass share the storage, and read its shadow with their own sizes and strides. An element of a shadow that
agrees with the real one is equal to it, so that a shadow holds the effect of flagged operations and nothing
else: no rounding differences pile up in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from halfguard.records.audit import AuditFinding, Fault
from halfguard.tracing.call_arguments import (
    WIDE,
    Call,
    OperationMode,
    results_of,
    to_wide,
    undispatched,
)
from halfguard.tracing.operation_places import ModuleStack, OperationPlace, OperationPlaces
from halfguard.tracing.origins import MOVES, UNWRITTEN, can_check, measure_range
from halfguard.tracing.source import user_frame

AGREE = 2.0**-7  # relative: four roundings of bfloat16, 16 of float16


@dataclass(slots=True)
class _Shadow:
    storage: StorageWeakRef
    values: Tensor  # one per element of the storage, in its order
    itemsize: int  # of the real elements
    sources: frozenset[int]


class Shadows:
    """The shadows of a step, and the flags that they come from."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.is_full = False
        self._of: dict[int, _Shadow] = {}
        self._bytes = 0

    def has(self, tensor: Tensor) -> bool:
        """Return whether a tensor has a shadow."""
        return bool(self._of) and self._find(tensor) is not None

    def read(self, tensor: Tensor) -> Tensor:
        """Return the shadow of a tensor, in FP32; without one, the tensor itself in FP32."""
        shadow = self._find(tensor)
        if shadow is None:
            return to_wide(tensor)
        return _region(shadow.values, tensor).clone()

    def sources(self, tensor: Tensor) -> frozenset[int]:
        """Return the flags that changed a tensor."""
        shadow = self._find(tensor)
        return frozenset() if shadow is None else shadow.sources

    def write(
        self, tensor: Tensor, values: Tensor, changed: Tensor, sources: frozenset[int]
    ) -> None:
        """Set the shadow of a tensor to ``values`` where they are ``changed``; end it where none is."""
        if not bool(changed.any()):
            self.drop(tensor)
            return
        values = torch.where(changed, values, tensor.to(values.dtype))
        shadow = self._find(tensor)
        if shadow is None:
            shadow = self._new(tensor, values)
            if shadow is None:
                return
        _region(shadow.values, tensor).copy_(values)
        shadow.sources |= sources

    def drop(self, tensor: Tensor) -> None:
        """Forget the shadow of a tensor."""
        shadow = self._find(tensor) if self._of else None
        if shadow is None:
            return
        if _covers(tensor):
            self._drop(tensor)
        else:  # the rest of the storage keeps its own
            _region(shadow.values, tensor).copy_(tensor)

    def _find(self, tensor: Tensor) -> _Shadow | None:
        if tensor.layout is not torch.strided or not tensor.numel():
            return None
        shadow = self._of.get(tensor.untyped_storage()._cdata)
        # A view in a dtype of another size cannot be read: its elements are not those of the shadow.
        return shadow if shadow is not None and shadow.itemsize == tensor.element_size() else None

    def _new(self, tensor: Tensor, values: Tensor) -> _Shadow | None:
        storage = tensor.untyped_storage()
        count = storage.nbytes() // tensor.element_size()
        size = count * values.element_size()
        for key in [key for key, shadow in self._of.items() if shadow.storage.expired()]:  # type: ignore[no-untyped-call]
            self._bytes -= self._of.pop(key).values.nbytes
        if self._bytes + size > self.max_bytes:
            self.is_full = True
            return None
        flat = tensor.as_strided((count,), (1,), 0)
        weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        wide = flat.to(values.dtype, copy=True)
        shadow = self._of[weak.cdata] = _Shadow(weak, wide, tensor.element_size(), frozenset())
        self._bytes += size
        return shadow

    def _drop(self, tensor: Tensor) -> None:
        shadow = self._of.pop(tensor.untyped_storage()._cdata, None)
        if shadow is not None:
            self._bytes -= shadow.values.nbytes


def differs(shadow: Tensor, reference: Tensor) -> Tensor:
    """Return where two results of one operation are different numbers."""
    if not (shadow.is_floating_point() or shadow.is_complex()):
        return shadow != reference
    largest = torch.maximum(shadow.abs(), reference.abs())
    apart = (shadow - reference).abs() > AGREE * largest
    finite = shadow.isfinite() & reference.isfinite()
    same = (shadow == reference) | (shadow.isnan() & reference.isnan())
    return torch.where(finite, apart, ~same)


def _region(values: Tensor, tensor: Tensor) -> Tensor:
    return values.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _covers(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


MIN_UNDERFLOW = 0.01  # share of an output's elements
# Beside MOVES: they choose among numbers, or set them to 0 on purpose.
_NO_UNDERFLOW = MOVES | frozenset({
    "threshold", "hardtanh", "where", "masked_fill", "masked_fill_", "constant_pad_nd", "fill_",
    "full", "full_like", "eye", "lift_fresh", "scatter", "sign", "scalar_tensor",
})  # fmt: skip


@dataclass(slots=True)
class Flag:
    """A line that left the range of half, over all of its calls."""

    first: AuditFinding
    elements: int = 0
    numel: int = 0
    calls: int = 0

    def add(self, elements: int, numel: int) -> None:
        """Count one more call."""
        self.elements += elements
        self.numel += numel
        self.calls += 1


@dataclass(frozen=True, slots=True)
class _Done:
    """A call that has run: its place, and what its results and overwritten arguments were."""

    call: Call
    packet: str
    place: OperationPlace
    before: dict[int, Tensor]  # copies of arguments that it wrote to
    results: list[Tensor]

    def real(self, tensor: Tensor) -> Tensor:
        """Return an argument in FP32, as it was before the call."""
        return to_wide(self.before.get(id(tensor), tensor))


class ShadowWatch(OperationMode):  # type: ignore[no-untyped-call]
    """Flags operations, and keeps a shadow of every tensor that a flag has changed."""

    def __init__(self, modules: ModuleStack, outermost: CodeType, max_bytes: int) -> None:
        super().__init__()
        self.shadows = Shadows(max_bytes)
        self.flags: list[Flag] = []
        self.not_judged: dict[str, None] = {}  # in order, each once
        self._by_place: dict[tuple[Any, ...], int] = {}
        self._places = OperationPlaces(modules, outermost)
        self._outermost = outermost

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        packet = func.overloadpacket.__name__
        place = self._places.of(packet, user_frame(self._outermost))
        if func.is_view or packet in UNWRITTEN:
            return func(*args, **kwargs)
        call = Call(func, args, kwargs)
        before = self._before(call)
        out = func(*args, **kwargs)
        with undispatched():
            self._look(_Done(call, packet, place, before, results_of(out, call.written)))
        return out

    def _before(self, call: Call) -> dict[int, Tensor]:
        """Return copies of the tensors that the call will write to, if it may have to be repeated."""
        written = call.written
        if not written or not (any(t.dtype in WIDE for t in written) or self._is_tainted(call)):
            return {}
        with undispatched():
            return {id(tensor): tensor.clone() for tensor in written}

    def _is_tainted(self, call: Call) -> bool:
        return any(self.shadows.has(one.tensor) for one in call.tensors)

    def _look(self, done: _Done) -> None:
        tainted = self._is_tainted(done.call)
        if not tainted and not any(_is_suspect(result, done) for result in done.results):
            return
        if done.packet == "_local_scalar_dense":
            self._note("the host reads a value that differs in FP32", done.place)
        elif not done.call.can_repeat:
            if tainted:
                self._follow_random(done)
        else:
            try:
                self._compare(done, tainted=tainted)
            except Exception as error:  # noqa: BLE001 - a kernel that has no FP32 form, for example
                self._note(f"{done.packet} could not be repeated in FP32 ({error})", done.place)
                for result in done.results:
                    self.shadows.drop(result)

    def _compare(self, done: _Done, *, tainted: bool) -> None:
        """Repeat a call in FP32, flag it, and shadow the results that are different."""
        references = done.call.in_fp32(done.real)
        shadows = done.call.in_fp32(lambda t: self._shadow(done, t)) if tainted else references
        read = (self.shadows.sources(one.tensor) for one in done.call.tensors)
        sources = frozenset[int]().union(*read)
        for result, reference, shadow in zip(done.results, references, shadows, strict=True):
            if result.layout is not torch.strided or not result.numel():
                continue
            if not result.shape == reference.shape == shadow.shape:
                self._note(f"the shape of {done.packet}'s output depends on the fault", done.place)
                self.shadows.drop(result)
                continue
            changed, flag = self._flag(done, result, reference)
            if tainted:
                changed = differs(shadow, reference) | changed
            if tainted or flag:
                changed &= differs(shadow, result.to(shadow.dtype))
                self.shadows.write(result, shadow, changed, sources | flag)

    def _shadow(self, done: _Done, tensor: Tensor) -> Tensor:
        return self.shadows.read(tensor) if self.shadows.has(tensor) else done.real(tensor)

    def _flag(
        self, done: _Done, result: Tensor, reference: Tensor
    ) -> tuple[Tensor, frozenset[int]]:
        """Return the elements that left the range of half, and the number of their flag."""
        none = torch.zeros((), dtype=torch.bool, device=result.device)
        if result.dtype not in WIDE:
            return none, frozenset()
        fault: Fault = "overflow"
        where, least = ~result.isfinite() & reference.isfinite(), 0.0
        if not bool(where.any()) and _may_underflow(done):
            # By rounding: a difference of neighbours that is 0 in half is no underflow.
            fault, least = "underflow", MIN_UNDERFLOW * result.numel()
            where = (result == 0) & (reference != 0) & (reference.to(result.dtype) == 0)
        count = int(where.sum())
        if count <= least:
            return none, frozenset()
        index = self._find_flag(done, fault, result, reference)
        self.flags[index].add(count, result.numel())
        return where, frozenset({index})

    def _find_flag(self, done: _Done, fault: Fault, result: Tensor, reference: Tensor) -> int:
        """Return the number of the flag of a line; make one at its first call."""
        place, source = done.place, done.place.source
        key = (source.file, source.line, place.op, place.phase, fault)
        if key not in self._by_place:
            read = [
                (one.name, done.before.get(id(one.tensor), one.tensor)) for one in done.call.tensors
            ]
            finding = AuditFinding(
                **place.facts(),
                kernel=str(done.call.func),
                fault=fault,
                elements=0,
                numel=0,
                inputs=tuple(measure_range(name, t) for name, t in read if can_check(t)),
                half=measure_range("output", result),
                fp32=measure_range("in FP32", reference),
            )
            self._by_place[key] = len(self.flags)
            self.flags.append(Flag(finding))
        return self._by_place[key]

    def _follow_random(self, done: _Done) -> None:
        """Carry a shadow through dropout; other random operations overwrite it."""
        source = done.call.tensors[0].tensor
        if done.packet == "native_dropout" and self.shadows.has(source):
            dropped, mask = done.results
            kept = to_wide(dropped)
            shadow, real = self.shadows.read(source), to_wide(source)
            factor = torch.where((real != 0) & real.isfinite(), kept / real, mask.to(kept.dtype))
            changed = differs(shadow, real)
            self.shadows.write(dropped, shadow * factor, changed, self.shadows.sources(source))
            return
        if any(self.shadows.has(one.tensor) for one in done.call.tensors if not one.is_written):
            reason = f"{done.packet} is random or not a torch operation and was not repeated"
            self._note(reason, done.place)
        for result in done.results:
            self.shadows.drop(result)

    def _note(self, reason: str, place: OperationPlace) -> None:
        self.not_judged.setdefault(f"{reason}{place.source.where}")


def _is_suspect(result: Tensor, done: _Done) -> bool:
    """Return whether a half result holds infinities, or enough zeros."""
    if result.dtype not in WIDE or not can_check(result):
        return False
    if not bool(result.isfinite().all()):
        return True
    if not _may_underflow(done):
        return False
    zeros = result.numel() - int(torch.count_nonzero(result))
    return zeros > MIN_UNDERFLOW * result.numel()


def _may_underflow(done: _Done) -> bool:
    return done.place.phase == "forward" and done.packet not in _NO_UNDERFLOW
