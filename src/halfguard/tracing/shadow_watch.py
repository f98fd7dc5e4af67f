"""Watch a step for operations that leave the range of half, and shadow in FP32 what they touched.

An operation is run again in FP32 only if its half output holds infinities or zeros, or if one of its inputs
has a shadow. From then on two FP32 results are compared: of the real inputs, and of their shadows. Where they
agree the fault has had no effect, and the shadow ends; a mask of -1e9, infinite in half, ends at its softmax.

Underflow counts in the forward pass only, and from a share of the elements on: what vanishes in the backward
pass is a matter of the loss scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from halfguard.records.audit import AuditFinding, Fault
from halfguard.tracing.call_arguments import results_of
from halfguard.tracing.fp32_call import WIDE, Call, to_wide, undispatched
from halfguard.tracing.operation_places import ModuleStack, OperationPlace, OperationPlaces
from halfguard.tracing.origins import MOVES, UNWRITTEN, can_check, measure_range
from halfguard.tracing.shadows import Shadows, differs
from halfguard.tracing.source import user_frame

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


class ShadowWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Flags operations, and keeps a shadow of every tensor that a flag has changed."""

    def __init__(self, modules: ModuleStack, outermost: CodeType, max_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shadows = Shadows(max_bytes)
        self.flags: list[Flag] = []
        self.not_judged: dict[str, None] = {}  # in order, each once
        self._by_place: dict[tuple[Any, ...], int] = {}
        self._places = OperationPlaces(modules, outermost)
        self._outermost = outermost

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
            self._note("the host read a number that is different in FP32", done.place)
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
                op=place.op,
                kernel=str(done.call.func),
                phase=place.phase,
                module=place.module,
                file=source.file,
                line=source.line,
                code=source.code,
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
            reason = f"{done.packet} is random or not torch's own, and was not repeated"
            self._note(reason, done.place)
        for result in done.results:
            self.shadows.drop(result)

    def _note(self, reason: str, place: OperationPlace) -> None:
        source = place.source
        where = f" at {source.file}:{source.line}" if source.file else ""
        self.not_judged.setdefault(f"{reason}{where}")


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
