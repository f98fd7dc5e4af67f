"""A look at a few steps of a good run: headroom, overflow that was swallowed, digits that half rounds away.

The steps are tracked like those of ``audit``, and one like that of ``rounding``. They are spread over the
run, which goes on at full speed between them: numbers often grow while a model is trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from halfguard.investigation.advice import advise_on_swallowed
from halfguard.investigation.bus import BackwardCall, HookBus
from halfguard.investigation.caught_errors import CaughtErrors
from halfguard.investigation.detectors import RoundedIntegers, SmallGradients
from halfguard.investigation.lost_digits import LostDigits
from halfguard.investigation.lost_increments import LostIncrements
from halfguard.investigation.lost_updates import LostUpdates
from halfguard.investigation.passes import (
    Ended,
    Headroom,
    Made,
    Misused,
    PassPlan,
    PassResult,
    Place,
    leave,
)
from halfguard.numerics.finite import bad_tensors
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.audit import AuditFinding
from halfguard.replaying.function_modes import user_place
from halfguard.tracing.audit import LIMIT, MAX_BYTES, judge
from halfguard.tracing.call_arguments import tensors_in, to_wide, undispatched
from halfguard.tracing.called_modules import CalledModules
from halfguard.tracing.operation_places import OperationPlaces
from halfguard.tracing.shadow_watch import ShadowWatch
from halfguard.tracing.source import user_frame

_COUNTS = ("elements", "numel", "calls")  # of a flag
_SECONDS = 120.0  # of the inspected part of a run


def choose_passes(first: PassResult) -> tuple[int, ...]:
    """Return the backward passes to look at, of those that a run has in two minutes."""
    count = first.backward
    if first.effort > _SECONDS:
        count = max(1, int(count * _SECONDS / first.effort))
    spread = (0, 1, count // 4, count // 2, 3 * count // 4, count - 2, count - 1)
    return tuple(sorted({one for one in spread if 0 <= one < count}))


def choose_taped(inspected: Sequence[int]) -> int | None:
    """Return a backward pass in the middle of those that are looked at, which is none of them."""
    between = range(inspected[len(inspected) // 2], inspected[-1]) if inspected else ()
    return next((one for one in between if one not in inspected), None)


class HeadroomWatch(ShadowWatch):  # type: ignore[no-untyped-call]
    """Flags operations that leave the range of half, and keeps the largest half result that does not."""

    def __init__(self, bus: HookBus, modules: CalledModules, outermost: CodeType) -> None:
        super().__init__(modules, outermost, MAX_BYTES)
        self._bus = bus
        self.headroom: Headroom | None = None
        self.wrongly_read: dict[int, Place | None] = {}  # lines that read what a flag has changed
        self._unwritten: set[int] = set()  # storages of torch.empty
        self._located = OperationPlaces(modules, outermost)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        out = super().run(func, args, kwargs)
        results = [t for t in tensors_in(out) if not t.is_meta and t.layout is torch.strided]
        made = {t.untyped_storage()._cdata for t in results}
        if func.overloadpacket.__name__.startswith(
            ("empty", "new_empty")
        ):  # it holds no numbers yet
            self._unwritten |= made
            return out
        if func._schema.is_mutable:
            self._unwritten -= made
        elif made & self._unwritten:  # a view
            return out
        with undispatched():
            self._bus.publish("operation", func, args, out)
        for tensor in results:
            if tensor.dtype in HALF_DTYPES and tensor.numel():
                with undispatched():
                    values = tensor.detach().abs()
                    largest = float(torch.where(values.isfinite(), values, 0).max())
                self._note_largest(largest, tensor.dtype, func)
        return out

    def note_read(self, tensor: Tensor) -> None:
        """Note the overflows behind finite numbers that leave torch, and so the loss, and are wrong."""
        if not self.shadows.has(tensor) or not tensor.is_floating_point():
            return
        with undispatched(), torch.no_grad():
            right, real = self.shadows.read(tensor.detach()), to_wide(tensor.detach())
            finite = right.isfinite() & real.isfinite()
            error = torch.where(finite, right - real, 0).norm()
            if not error > LIMIT * torch.where(finite, right, 0).norm():
                return
        for index in self.shadows.sources(tensor):
            first = self.flags[index].first
            if (first.fault, first.phase) == ("overflow", "forward"):
                self.wrongly_read.setdefault(index, user_place())

    def _note_largest(self, largest: float, dtype: torch.dtype, func: Any) -> None:
        limit = torch.finfo(dtype).max
        known = self.headroom
        if known is not None and largest / limit <= known.largest / known.limit:
            return
        place = self._located.of(func.overloadpacket.__name__, user_frame(self._outermost))
        file, line = place.source.file, place.source.line
        self.headroom = Headroom(largest=largest, limit=limit, op=place.op, file=file, line=line)


class Inspecting:
    """Tracks the steps of its plan, and answers."""

    def __init__(self, plan: PassPlan, bus: HookBus, outermost: CodeType) -> None:
        self._plan, self._bus, self._code = plan, bus, outermost
        self._modules = CalledModules()
        self._watch: HeadroomWatch | None = None
        self._headroom: Headroom | None = None
        self._found: dict[tuple[str, int, str], AuditFinding] = {}
        self._steps = 0
        self._updates, self._gradients = LostUpdates(bus), SmallGradients(bus)
        self._digits, self._taped = (
            LostDigits(bus, self._modules, outermost),
            choose_taped(plan.inspect),
        )
        increments = LostIncrements(bus)
        self._detectors = (
            RoundedIntegers(bus),
            self._updates,
            self._gradients,
            self._digits,
            CaughtErrors(bus, plan),
            increments,
        )
        self._swallowed: list[Misused] = []
        self._until = time.process_time() + 2 * _SECONDS
        self._handle: Any = register_module_forward_pre_hook(self._first_call)
        self._stepping: set[Place | None] = set()  # lines that step an optimizer
        bus.listen(*self._detectors, self)
        torch.compiler.set_stance("force_eager")
        increments.__enter__()  # type: ignore[no-untyped-call]

    def _first_call(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled():
            self._handle.remove()
            self._modules.watch(lambda *_: self._digits.on_entering())
            self._modules.enter(module, args)
            if 0 in self._plan.inspect:
                self._begin()

    def _begin(self) -> None:
        self._updates.is_on = True
        self._watch = HeadroomWatch(self._bus, self._modules, self._code)
        self._watch.__enter__()  # type: ignore[no-untyped-call]

    def on_stepping(self, _optimizer: Any) -> None:
        self._stepping.add(user_place())

    def on_backward_done(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        watch = self._watch
        if watch is None or not call.accumulates:
            return
        self._watch = None
        watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        with self._bus.unobserved():
            parameters = nn.ParameterList(self._bus.parameters)
            report = judge(watch, parameters, call.outputs[0], LIMIT)
            is_skipped = call.scaled and bool(bad_tensors(gradients))  # by the scaler, which saw it
        self._gradients.look(call, gradients)
        used = () if is_skipped else tuple(filter(self._matters, report.findings))
        for finding in used:
            self._tell(finding)
        told = {(finding.place, finding.op) for finding in used}
        for index, place in () if is_skipped else watch.wrongly_read.items():
            finding = watch.flags[index].first
            if (finding.place, finding.op) not in told:
                counts = {name: getattr(watch.flags[index], name) for name in _COUNTS}
                self._tell(finding.model_copy(update={**counts, "use": "not judged"}), place)
        seen = [found for found in (self._headroom, watch.headroom) if found is not None]
        self._headroom = max(seen, key=lambda found: found.largest / found.limit, default=None)
        self._steps += 1

    def on_read(self, tensor: Tensor) -> None:
        if self._watch is not None:
            self._watch.note_read(tensor)

    def _tell(self, finding: AuditFinding, read: Place | None = None) -> None:
        self._found.setdefault((finding.file, finding.line, finding.op), finding)
        if finding.file:
            self._swallowed.append(
                Misused(
                    kind="swallowed",
                    code="HG609",
                    sentence=advise_on_swallowed(finding, read),
                    place=(finding.file, finding.line),
                    backward=self._bus.backward,
                    unsure=finding.fault != "overflow",
                )
            )

    def _matters(self, finding: AuditFinding) -> bool:
        """Return whether a finding is worth telling.

        Numbers that became 0 are not, where the tensor's largest one is rounded by more than they were, or in
        the arithmetic of an optimizer, whose eps decides what they mean.
        """
        if finding.fault == "overflow":
            return True
        if finding.outside and (finding.file, finding.line) in self._stepping:
            return False
        half = finding.half
        limit = torch.finfo(getattr(torch, half.dtype)).smallest_normal
        return max(abs(half.low), abs(half.high)) < limit

    def on_step_begins(self) -> None:
        if self._bus.backward in self._plan.inspect:
            self._begin()
        elif self._bus.backward == self._taped:
            self._digits.look_for()
        elif (
            self._bus.backward > max(self._plan.inspect, default=0) + 1
            or time.process_time() > self._until
        ):
            self.on_finished("", "steps")

    def on_finished(self, error: str, ended: Ended) -> NoReturn:
        leave(
            self._plan.answer,
            PassResult(
                ended=ended,
                error=error,
                headroom=self._headroom,
                swallowed=tuple(self._found.values()),
                inspected=self._steps,
                misuse=(
                    *sorted(self._swallowed, key=lambda one: one.unsure)[:1],
                    *(one for detector in self._detectors for one in detector.found(Made(), error)),
                ),
            ),
        )
