"""The second pass: track every operation of the bad step, and name the one that made the bad number.

That operation is run once more in FP64. If the result is finite there, the format was too small for it. If it
is not, the operation has no finite value at these inputs: a division by zero, for example, where a lower
precision may have made the zero.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from linecache import getline
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from halfguard.dist.collectives import world_size
from halfguard.formats import dtype_name, largest_of
from halfguard.investigation.advice import describe_place
from halfguard.investigation.bus import BackwardCall, HookBus, first_number
from halfguard.investigation.held_step import HeldProcess, HeldStep, Snapshot, running_frames
from halfguard.investigation.made_places import MadePlaces
from halfguard.investigation.makers import Makers
from halfguard.investigation.passes import (
    Ended,
    Event,
    Made,
    PassPlan,
    PassResult,
    Reason,
    TrialPlan,
    TrialResult,
    leave,
    write_progress,
)
from halfguard.investigation.reasons import BadCall, find_reason
from halfguard.investigation.silent_faults import constant_of
from halfguard.investigation.trying import Approach, Trying, run_trials
from halfguard.numerics.finite import bad_tensors, storages
from halfguard.records.autopsy import Culprit, CulpritKind
from halfguard.replaying.function_modes import user_place
from halfguard.step.parameters import parameters_of
from halfguard.step.random_state import capture_random_state
from halfguard.tracing.call_arguments import Call, tensors_in, undispatched
from halfguard.tracing.called_modules import CalledModules
from halfguard.tracing.first_nonfinite import OperationWatch
from halfguard.tracing.operation_places import ModuleStack
from halfguard.tracing.origins import Origin

_MOST = 50  # origins that are run again
_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_UNKNOWN = math.nan
_HIDES = ("nan_to_num", "nan_to_num_")
_PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "linear", "convolution", "matmul", "conv1d", "conv2d")


class ExactWatch(OperationWatch):  # type: ignore[no-untyped-call]
    """Finds origins; ``exact`` has the largest result in FP64 by the index of the origin."""

    def __init__(self, modules: ModuleStack, outermost: CodeType) -> None:
        super().__init__(modules, outermost)
        self.exact: dict[int, float] = {}
        self.masks: dict[int, Culprit] = {}  # the infinity on purpose that an origin made into NaN
        self.hides: tuple[str, int] | None = None  # a line that made bad numbers finite
        self.of_data: set[int] = set()  # origins outside of modules, whose inputs need no gradient
        self.reasons: dict[int, Reason | None] = {}
        self._makers = Makers(outermost)
        self._newest = 0

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        hides = self.last is not None and func.overloadpacket.__name__ in _HIDES
        if hides and isinstance(args[0], Tensor) and self.origins.get(args[0]) is not None:
            self.hides = self.hides or user_place()
        out = super().run(func, args, kwargs)
        with undispatched(), torch.no_grad(), suppress(RuntimeError):  # no kernel for this dtype
            self._makers.note(func, args, out)
        if self.last is not None and self.last.index > self._newest:
            self._newest = self.last.index
            call = Call(func, args, kwargs)
            culprit = self.last.culprit
            if culprit.module is None and culprit.phase == "forward" and _is_data(call):
                self.of_data.add(self._newest)
            if len(self.exact) < _MOST and culprit.kind == "op":
                self.exact[self._newest] = _in_fp64(call, args, kwargs)
                self._note_mask(call)
                exact = self.exact[self._newest]
                bad = BadCall(call, args, out, culprit, exact, self._makers)
                with undispatched(), torch.no_grad(), suppress(RuntimeError):
                    self.reasons[self._newest] = find_reason(bad)
        return out

    def _origin_of(self, name: str, tensor: Tensor, where: Any, frame: Any) -> Origin:
        """Return the origin of a bad argument; -inf that is multiplied is bad data, not a mask."""
        origin = super()._origin_of(name, tensor, where, frame)
        if origin.culprit.kind == "input" and where.op in _PRODUCTS:
            origin.intended = False
        return origin

    def _note_mask(self, call: Call) -> None:
        for one in call.tensors:
            known = self.origins.get(one.tensor)
            if known is not None and known.intended and known.index < self._newest:
                self.masks[self._newest] = known.culprit


def _is_data(call: Call) -> bool:
    """Return whether no argument of a call depends on a parameter, and one is a tensor of numbers."""
    tensors = [one.tensor for one in call.tensors if one.tensor.is_floating_point()]
    return bool(tensors) and not any(t.requires_grad or t.grad_fn is not None for t in tensors)


def _in_fp64(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return the largest magnitude of the result in FP64; infinite if it is not finite, NaN if unknown."""
    if call.written or not call.can_repeat:  # the inputs are gone, or it draws random numbers
        return _UNKNOWN
    try:
        with undispatched(), torch.no_grad():
            out = call.func(
                *map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()}
            )
            results = [t for t in tensors_in(out) if t.is_floating_point() and t.numel()]
            if not results:
                return _UNKNOWN
            largest = max(float(result.abs().max()) for result in results)
    except Exception:  # noqa: BLE001 - a kernel without an FP64 form
        return _UNKNOWN
    return math.inf if math.isnan(largest) else largest


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _NARROW else value
    return [_wide(item) for item in value] if isinstance(value, list | tuple) else value


_SECONDS = 120.0  # for all trials
_SLACK = 2  # backward passes after the event in which it is still waited for


class Tracking(Approach):
    """Tracks from the beginning of the bad step, and answers at its first bad number."""

    def __init__(self, plan: PassPlan, bus: HookBus, event: Event, outermost: CodeType) -> None:
        super().__init__(plan, bus, event, outermost)
        self._modules = CalledModules()
        self._watch = ExactWatch(self._modules, outermost)
        self._given = plan, bus, event, outermost
        self._held: HeldProcess | None = None
        self._registered: MutableMapping[nn.Module, bool] = WeakIdKeyDictionary()
        self._autocast = ""
        self._optimizer: torch.optim.Optimizer | None = None  # that stepped
        self._before_step = 0  # the last origin before the optimizer's own arithmetic
        self._is_stepped = False  # a step has just ended
        self._bad_before: set[int] = set()  # storages of parameters, when tracking began
        self._loss = math.nan
        self._factor, self._scaled_at = 0.0, ""  # of a loss that the script scales itself
        self._random: Any = None  # before the batch of the step was made
        self._before: Snapshot | None = None  # of a step that is repeated in place
        self._older: list[FrameType] = []  # that ran when tracking began
        self._made = MadePlaces(plan)
        bus.listen(self._made)

    def begin(self, first: nn.Module | None, args: Any) -> None:
        # Where every step is tracked, the process would be held at the first one.
        wanted = self.plan.start != "first module" and HeldProcess.is_possible()
        held = HeldProcess.hold() if wanted else None
        if held is not None and held.trial is not None:  # a copy of this process, much later
            trying = Trying(*self._given, held.trial, held.send)
            self.bus.only(trying)
            trying.begin(first, args)
            return
        self._held = held
        self._random, self._older = capture_random_state(), running_frames()
        with self.bus.unobserved():
            self._bad_before = storages(bad_tensors(self.bus.parameters))
        self._modules.watch(self._entering)
        if first is not None:
            self._modules.enter(first, args)
        self._watch.__enter__()  # type: ignore[no-untyped-call]

    def _entering(self, root: nn.Module, _args: Any) -> None:
        """Register what is bad before its first use."""
        wanted = self._held is None and self.plan.start != "first module" and world_size() == 1
        if wanted and self._before is None and root is self._modules.model:
            self._before = Snapshot.take(self.bus, root, self._random)
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self._autocast = dtype_name(torch.get_autocast_dtype(device))
        if root in self._registered:
            return
        self._registered[root] = True
        residents: list[tuple[CulpritKind, str, Tensor]] = []
        residents += [("parameter", *item) for item in root.named_parameters()]
        residents += [("buffer", *item) for item in root.named_buffers()]
        with self.bus.unobserved():
            storages = {t.untyped_storage()._cdata for t in bad_tensors(t for *_, t in residents)}
            for kind, name, tensor in residents:
                known = self._watch.origins.get(tensor) is not None
                if known or tensor.untyped_storage()._cdata not in storages:
                    continue
                dtype = dtype_name(tensor.dtype)
                culprit = Culprit(kind, "", "forward", None, "", 0, "", name=name, dtype=dtype)
                mask = kind == "buffer" and not bool((tensor.isnan() | tensor.isposinf()).any())
                self._watch.origins.put(tensor, self._watch.origins.new(culprit, intended=mask))

    # -- what the loop does

    def on_backward(self, call: BackwardCall) -> None:
        super().on_backward(call)
        if self.has_begun and call.accumulates:
            with self.bus.unobserved():
                self._loss = first_number(call.losses)
                loss = next(iter(call.losses), None)
                self._factor = constant_of(getattr(loss, "grad_fn", None), "MulBackward0")
                self._scaled_at = describe_place(user_place())
            self._answer_if_bad(call.losses)
            if self.event.kind == "parameters":
                self._answer_if_bad(self.bus.parameters)

    def on_backward_done(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        if self.has_begun and (not call.scaled or self.event.kind == "scale"):
            self._answer_if_bad(gradients)
        self._note_origins()  # a closure, which step() calls, is not the optimizer's arithmetic

    def on_backward_failed(self, error: RuntimeError) -> None:
        if self.has_begun and "nan values" in str(error):
            self._answer(self._watch.last)

    def on_step_begins(self) -> None:
        super().on_step_begins()
        if self.plan.start == "event" and self.bus.backward > self.event.backward + _SLACK:
            self._leave(PassResult(ended="finished"))

    def on_stepping(self, _optimizer: torch.optim.Optimizer) -> None:
        self._note_origins()

    def _note_origins(self) -> None:
        last = self._watch.last
        self._before_step = 0 if last is None else last.index

    def on_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if self.has_begun:
            self._optimizer = optimizer
            self._random = capture_random_state()
            self._is_stepped = True
            self._answer_if_bad(list(parameters_of(optimizer)))
            self._is_stepped = False

    def on_scaler_failed(self, optimizer: Any, _error: Exception) -> None:
        self._optimizer = getattr(optimizer, "optimizer", optimizer) or self._optimizer

    def on_looked(self, tensor: Tensor, _how: str) -> None:
        expected = tensor.requires_grad or self.event.kind == "looked"
        if self.has_begun and expected:
            self._answer_if_bad([tensor])

    def on_finished(self, error: str, ended: Ended) -> NoReturn:
        if self.has_begun and error and self._watch.last is not None:
            self._answer(self._watch.last)
        made = self._made.facts(self._optimizer or next(iter(self.bus.optimizers), None))
        self._leave(PassResult(ended=ended, error=error, made=made))

    # -- the answer

    def _answer_if_bad(self, tensors: Sequence[Tensor]) -> None:
        with self.bus.unobserved():
            bad = bad_tensors(tensors)
        # Parameters that were bad before are no doing of this step; a loss that they spoil has their origin.
        bad = [tensor for tensor in bad if not storages([tensor]) & self._bad_before]
        if not bad:
            return
        known = [o for tensor in bad if (o := self._watch.origins.get(tensor)) is not None]
        self._answer(min(known, key=lambda origin: origin.index, default=self._watch.last))

    def _answer(self, origin: Origin | None) -> NoReturn:
        self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if origin is None:
            self._leave(PassResult(ended="event"))
        culprit = origin.culprit
        culprit = replace(culprit, intended=True) if origin.intended else culprit
        if culprit.phase == "backward" and not culprit.file:
            culprit = _at_backward_call(culprit)
        is_in_step = self._is_stepped and origin.index > self._before_step
        if is_in_step and culprit.kind == "op" and self._optimizer is not None:
            culprit = replace(culprit, optimizer=type(self._optimizer).__name__)
        exact = self._watch.exact.get(origin.index, math.nan)
        reason = self._watch.reasons.get(origin.index)
        result = PassResult(
            ended="event",
            culprit=culprit,
            exact=exact,
            mask=self._watch.masks.get(origin.index),
            reason=self._with_scale(reason, culprit, exact),
            # 0 / 0 has a harmless stable form; an infinity would only become a large number.
            of_data=origin.index in self._watch.of_data
            and not (reason is not None and reason.place)  # the script itself made the value
            and math.isinf(exact)
            and any(one.posinf or one.neginf for one in culprit.outputs),
            made=self._facts(culprit),
            autocast=self._autocast,
        )
        older = self.event.kind == "parameters" and culprit.kind == "parameter"
        self._report(result)
        held = None if older else self._held or self._in_place()  # it would not show a cure
        if held is not None:
            done: tuple[TrialResult, ...] = ()
            for trial in self._trials(result, held):
                done = (*done, trial)
                self._report(result.model_copy(update={"trials": done}))
            result = result.model_copy(update={"trials": done})
        self._leave(result)

    def _with_scale(self, reason: Reason | None, culprit: Culprit, exact: float) -> Reason | None:
        """Add the constant by which the script multiplies its loss, if gradients fit without it."""
        limit = largest_of(culprit.dtype)
        is_scaled = culprit.phase == "backward" and self._factor > 1
        if reason is None or not is_scaled or not limit < exact < limit * self._factor:
            return reason
        text = (
            f"{reason.text}; the loss was multiplied by {self._factor:g}, without which this is "
            f"{exact / self._factor:.4g} ({self._scaled_at})"
        )
        return reason.model_copy(update={"text": text})

    def _in_place(self) -> HeldStep | None:
        """Return the step if its statements can be repeated in this process."""
        if self._before is None or self.event.kind == "parameters":
            return None
        held = HeldStep(self.bus, self._before, lambda *how: Trying(*self._given, *how))
        return held if held.find(self._loss, self._older) else None

    def _trials(self, found: PassResult, held: HeldProcess | HeldStep) -> Iterator[TrialResult]:
        """Run trials until their time is used up: those from the script's first line take long."""
        until = time.monotonic() + _SECONDS

        def run(trial: TrialPlan) -> TrialResult | None:
            return None if time.monotonic() > until else held.run(trial)

        yield from run_trials(found, self.event, run)

    def _facts(self, culprit: Culprit) -> Made:
        """Return where things were made that a cure may have to change."""
        steps = self._optimizer or next(iter(self.bus.optimizers), None)
        path = culprit.module or ""
        name, _, rest = path.partition(".")
        root = self._modules.module_at(name)  # a loss, for example
        modules = self._made.submodule(self._modules.model, path)
        modules = modules or self._made.submodule(root, rest)
        facts = {
            "modules": modules,
            "not_updated": self.bus.not_updated,
            "hides": self._watch.hides,
        }
        return self._made.facts(steps).model_copy(update=facts)

    def _report(self, result: PassResult) -> None:
        """Tell what is known so far, in case that the user does not wait for the rest."""
        write_progress(self.plan.answer, self._complete(result))

    def _leave(self, result: PassResult) -> NoReturn:
        leave(self.plan.answer, self._complete(result))

    def _complete(self, result: PassResult) -> PassResult:
        facts = {
            "differs_at": self.differs_at,
            "bad_before": bool(self._bad_before),
            "backward": self.bus.backward,
            "steps": self.bus.steps,
            "rank": int(os.environ.get("RANK", "0")),
        }
        return result.model_copy(update=facts)


def _at_backward_call(culprit: Culprit) -> Culprit:
    """Return a culprit that no line of the forward pass made: it has the line of the backward call."""
    place = user_place()
    if place is None:
        return culprit
    op = culprit.op.rpartition("::")[2]
    return replace(culprit, op=op, file=place[0], line=place[1], code=getline(*place).strip())
