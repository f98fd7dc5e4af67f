"""A look at a few steps of a run without a bad number: the lowest headroom, and overflow that was swallowed.

The steps are tracked like those of ``audit``. They are spread over the run, which goes on at full speed
between them: numbers often grow while a model is trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from halfguard.investigation.advice import advise_on_swallowed
from halfguard.investigation.called_modules import CalledModules
from halfguard.investigation.finite import bad_tensors
from halfguard.investigation.lost_precision import LostUpdates, RoundedPositions, SmallGradients
from halfguard.investigation.passes import (
    Ended,
    Headroom,
    Misused,
    PassPlan,
    PassResult,
    Place,
    leave,
)
from halfguard.investigation.training_loop import BackwardCall, LoopObserver, TrainingLoop
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.audit import AuditFinding
from halfguard.replaying.function_modes import user_place
from halfguard.tracing.audit import LIMIT, MAX_BYTES, judge
from halfguard.tracing.call_arguments import tensors_in
from halfguard.tracing.fp32_call import undispatched
from halfguard.tracing.operation_places import OperationPlaces
from halfguard.tracing.shadow_watch import ShadowWatch
from halfguard.tracing.source import user_frame

_SECONDS = 120.0  # of the inspected part of a run


def choose_passes(first: PassResult) -> tuple[int, ...]:
    """Return the backward passes to look at, of those that a run has in two minutes."""
    count = first.backward
    if first.seconds > _SECONDS:
        count = max(1, int(count * _SECONDS / first.seconds))
    spread = (0, 1, count // 4, count // 2, 3 * count // 4, count - 2, count - 1)
    return tuple(sorted({one for one in spread if 0 <= one < count}))


class HeadroomWatch(ShadowWatch):  # type: ignore[no-untyped-call]
    """Flags operations that leave the range of half, and keeps the largest half result that does not."""

    def __init__(
        self, modules: CalledModules, outermost: CodeType, positions: RoundedPositions
    ) -> None:
        super().__init__(modules, outermost, MAX_BYTES)
        self.positions = positions
        self.headroom: Headroom | None = None
        self._located = OperationPlaces(modules, outermost)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func.overloadpacket.__name__.startswith("empty"):  # it holds no numbers yet
            return out
        with undispatched():
            self.positions.look(func, args, out)
        for tensor in tensors_in(out):
            if tensor.dtype in HALF_DTYPES and tensor.numel() and not tensor.is_meta:
                with undispatched():
                    values = tensor.detach().abs()
                    largest = float(torch.where(values.isfinite(), values, 0).max())
                self._note_largest(largest, tensor.dtype, func)
        return out

    def _note_largest(self, largest: float, dtype: torch.dtype, func: Any) -> None:
        limit = torch.finfo(dtype).max
        known = self.headroom
        if known is not None and largest / limit <= known.largest / known.limit:
            return
        place = self._located.of(func.overloadpacket.__name__, user_frame(self._outermost))
        file, line = place.source.file, place.source.line
        self.headroom = Headroom(largest=largest, limit=limit, op=place.op, file=file, line=line)


class Inspecting(LoopObserver):
    """Tracks the steps of its plan, and answers."""

    def __init__(self, plan: PassPlan, loop: TrainingLoop, outermost: CodeType) -> None:
        self._plan, self._loop, self._code = plan, loop, outermost
        self._modules = CalledModules()
        self._watch: HeadroomWatch | None = None
        self._headroom: Headroom | None = None
        self._found: dict[tuple[str, int, str], AuditFinding] = {}
        self._steps = 0
        self._positions, self._updates = RoundedPositions(), LostUpdates(loop)
        self._gradients = SmallGradients(loop)
        self._swallowed: list[Misused] = []
        self._until = time.monotonic() + 2 * _SECONDS
        self._handle: Any = register_module_forward_pre_hook(self._first_call)
        self._stepping: set[Place | None] = set()  # lines that step an optimizer
        register_optimizer_step_pre_hook(lambda *_: self._stepping.add(user_place()))

    def _first_call(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled():
            self._handle.remove()
            self._modules.watch(lambda _: True, lambda *_: None)
            self._modules.enter(module, args)
            if 0 in self._plan.inspect:
                self._begin()

    def _begin(self) -> None:
        self._updates.is_on = True
        self._watch = HeadroomWatch(self._modules, self._code, self._positions)
        self._watch.__enter__()  # type: ignore[no-untyped-call]

    def after_backward(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        watch = self._watch
        if watch is None or not call.accumulates:
            return
        self._watch = None
        watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        with self._loop.unobserved():
            parameters = nn.ParameterList(self._loop.parameters)
            report = judge(watch, parameters, call.outputs[0], LIMIT)
            is_skipped = call.scaled and bool(bad_tensors(gradients))  # by the scaler, which saw it
        self._gradients.look(call, gradients)
        for finding in () if is_skipped else filter(self._matters, report.findings):
            self._found.setdefault((finding.file, finding.line, finding.op), finding)
            if finding.fault == "overflow" and finding.file:
                self._swallowed.append(
                    Misused(
                        kind="swallowed",
                        sentence=advise_on_swallowed([finding])[0],
                        place=(finding.file, finding.line),
                        backward=self._loop.backward,
                    )
                )
        seen = [found for found in (self._headroom, watch.headroom) if found is not None]
        self._headroom = max(seen, key=lambda found: found.largest / found.limit, default=None)
        self._steps += 1

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

    def between_steps(self) -> None:
        if self._loop.backward in self._plan.inspect:
            self._begin()
        elif self._loop.backward > max(self._plan.inspect) or time.monotonic() > self._until:
            self.finish("", "steps")

    def finish(self, error: str, ended: Ended) -> NoReturn:
        """Answer with what was seen."""
        leave(
            self._plan.answer,
            PassResult(
                ended=ended,
                error=error,
                headroom=self._headroom,
                swallowed=tuple(self._found.values()),
                inspected=self._steps,
                misuse=(
                    *self._swallowed[:1],
                    *self._positions.found(),
                    *self._updates.found(),
                    *self._gradients.found(),
                ),
            ),
        )
