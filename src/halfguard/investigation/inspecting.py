"""A look at a few steps of a good run: headroom, overflow that was swallowed, numbers that half rounds away.

The steps are tracked like those of ``audit``. They are spread over the run, which goes on at full speed
between them: numbers often grow while a model is trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import wraps
from types import CodeType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from halfguard.investigation.advice import advise_on_swallowed, describe_place
from halfguard.investigation.called_modules import CalledModules
from halfguard.investigation.finite import bad_tensors
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
from halfguard.tracing.call_arguments import tensors_in, undispatched
from halfguard.tracing.operation_places import OperationPlaces
from halfguard.tracing.shadow_watch import ShadowWatch
from halfguard.tracing.source import user_frame

_POSITIONS = 16  # fewer numbers in a row are no positions
_MOST_LOST = 0.9  # of the elements whose gradient is not 0
_FEWEST_STEPS = 3
_FEW_BITS = 2.0**-19  # gradients below have at most 5 significant bits in float16
_MOST_ELEMENTS = 5_000_000  # of parameters that are copied


class RoundedPositions:
    """Notes the first line where whole numbers in a row become half, and neighbours become equal."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._dtype = ""

    def look(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """Look at the cast of a tensor."""
        if self._place is not None or func.overloadpacket.__name__ != "_to_copy":
            return
        numbers = args[0] if args else None
        if not isinstance(numbers, Tensor) or not isinstance(out, Tensor):
            return
        whole = not numbers.is_floating_point() and not numbers.is_complex()
        if whole and out.dtype in HALF_DTYPES and _collide(numbers, out):
            self._place, self._dtype = user_place(), str(out.dtype).removeprefix("torch.")

    def found(self) -> tuple[Misused, ...]:
        """Return what was seen."""
        if self._place is None:
            return ()
        text = (
            f"Positions become {self._dtype} at {describe_place(self._place)}: whole numbers above "
            f"{2048 if self._dtype == 'float16' else 256} are rounded there, and neighbours become equal. "
            "Compute them in FP32."
        )
        return (Misused(kind="rounded integers", sentence=text, place=self._place),)


def _collide(numbers: Tensor, out: Tensor) -> bool:
    if numbers.dim() != 1 or numbers.numel() < _POSITIONS or numbers.dtype == torch.bool:
        return False
    in_a_row = bool((numbers[1:] - numbers[:-1] == 1).all())
    return in_a_row and bool((out[1:] == out[:-1]).any())


class LostUpdates:
    """Counts elements of half weights that a step of torch's own optimizers leaves as they are."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self.is_on = False
        self._before: list[
            tuple[Tensor, Tensor, Tensor]
        ] = []  # parameter, a copy, where it has a gradient
        self._shares: list[float] = []
        self._place: Place | None = None
        self._dtype = ""
        self._hooks = (
            register_optimizer_step_pre_hook(self._keep),
            register_optimizer_step_post_hook(self._compare),
        )

    def remove(self) -> None:
        """Take the sensors away."""
        for hook in self._hooks:
            hook.remove()

    def _keep(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._before = []
        if not self.is_on or not type(optimizer).__module__.startswith("torch.optim"):
            return
        room = _MOST_ELEMENTS
        with self._loop.unobserved():
            groups = [group for group in optimizer.param_groups if _has_rate(group)]
            for parameter in (p for group in groups for p in group["params"]):
                room -= parameter.numel()
                if parameter.dtype in HALF_DTYPES and parameter.grad is not None and room > 0:
                    has_gradient = parameter.grad.to_dense() != 0
                    self._before.append((parameter, parameter.detach().clone(), has_gradient))
                    self._dtype = str(parameter.dtype).removeprefix("torch.")

    def _compare(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._before:
            return
        self.is_on = False
        with self._loop.unobserved():
            lost = sum(int(((p == old) & has).sum()) for p, old, has in self._before)
            moved = sum(int(has.sum()) for *_, has in self._before)
        self._before = []
        if moved:
            self._shares.append(lost / moved)
            self._place = self._place or user_place()

    def found(self) -> tuple[Misused, ...]:
        """Return what was seen, if most updates were lost in every step."""
        if len(self._shares) < _FEWEST_STEPS or min(self._shares) < _MOST_LOST:
            return ()
        text = (
            f"{min(self._shares):.0%} of the updates of half weights, or more, are lost in each step: they "
            "are smaller than the distance to the next half number. Keep the weights in FP32, and run the "
            "model under torch.autocast."
        )
        return (Misused(kind="lost updates", sentence=text, place=self._place, dtype=self._dtype),)


def _has_rate(group: dict[str, Any]) -> bool:
    """Return whether a group of an optimizer is trained: a learning rate of 0 freezes it."""
    return "lr" not in group or float(group["lr"]) != 0


def _values(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient, which may be sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


class SmallGradients:
    """Notes a backward pass without a scaler, whose gradients are too small for half."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._seen: list[Misused] = []
        self._small: list[bool] = []
        self._has_fp16 = False  # a region of autocast
        self._enter: Any = torch.autocast.__enter__
        self._watch_autocast()

    def _watch_autocast(self) -> None:
        """Note whether a region of FP16 is entered; it stays noted."""
        original = self._enter

        @wraps(original)
        def enter(region: Any) -> Any:
            self._has_fp16 |= region._enabled and region.fast_dtype is torch.float16
            return original(region)

        setattr(torch.autocast, "__enter__", enter)  # noqa: B010

    def remove(self) -> None:
        """Take the sensor away."""
        setattr(torch.autocast, "__enter__", self._enter)  # noqa: B010

    def look(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        """Look at the gradients of a backward pass."""
        if call.scaled or self._loop.scaler is not None or not gradients or not self._has_fp16:
            return
        with self._loop.unobserved():
            values = [_values(g.detach()) for g in gradients]
            largest = [float(g.abs().max()) for g in values if g.numel()]
            dense = [g.detach() for g in gradients if not g.is_sparse]
            norms = tuple(float(g.double().norm()) for g in dense)
        few = sum(one < _FEW_BITS for one in largest)
        self._small.append(few > len(largest) / 2)
        place = user_place()
        text = (
            "Autocast runs in float16 without a loss scale, and most gradients are too small for it: they "
            f"are 0, or have a few bits left, at {describe_place(place)}. Scale the loss by a GradScaler."
        )
        seen = Misused(
            kind="no scaler",
            sentence=text,
            place=place,
            backward=self._loop.backward,
            norms=norms,
            sizes=tuple(g.numel() for g in dense),
        )
        self._seen.append(seen)

    def found(self) -> tuple[Misused, ...]:
        """Return what was seen; only FP32 can tell if it is wrong."""
        # Later they may be small because the model has learnt.
        early = self._small[1 : len(self._small) // 2 + 1]
        if len(self._seen) < _FEWEST_STEPS or not all(early):
            return ()
        return (self._seen[len(self._seen) // 2],)


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
