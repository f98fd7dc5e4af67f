"""Run the bad step once more under changes, and tell whether it is good.

The trials are those that could lead to a cure of the culprit. FP32 comes first: without it no change of
precision is worth trying. A lower loss scale is tried only if the loss scale is what overflowed.

A pass that tries one runs the script again, at full speed, up to the end of the backward pass before the
event, so that the optimizer's step lies inside. For the first step it is the first call of a module, or the
script's first line. On the way the losses are compared with those of the first pass, bit by bit.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from halfguard.investigation.bus import BackwardCall, HookBus, first_number
from halfguard.investigation.passes import (
    HALF_NAMES,
    Ended,
    Event,
    PassPlan,
    PassResult,
    TrialPlan,
    TrialResult,
    first_difference,
    read_losses,
)
from halfguard.numerics.finite import bad_tensors, storages
from halfguard.precision.islands import fp32_island, remove_island
from halfguard.records.autopsy import FAR, Culprit, ReplayTrial
from halfguard.replaying.function_modes import name_lines
from halfguard.replaying.line_changes import line_change
from halfguard.replaying.process_in_fp32 import process_in_fp32
from halfguard.step.parameters import parameters_of
from halfguard.tracing.called_modules import CalledModules
from halfguard.tracing.first_nonfinite import OperationWatch
from halfguard.tracing.operation_places import ModuleStack
from halfguard.trials.proof import relative, squared_difference

FP32 = TrialPlan(name="the whole step in FP32", kind="fp32")
BF16 = TrialPlan(name="autocast in bfloat16", kind="bf16")
_LINES = 4  # that are changed together
CALIBRATED = 1.0  # a scale that a scaler would reach, for changes of the computation
_IN_FP32 = ("statement", "slice", "function")
Run = Callable[[TrialPlan], TrialResult | None]


def run_trials(found: PassResult, event: Event, run: Run) -> Iterator[TrialResult]:
    """Run the trials that the culprit suggests, and yield those that ran."""
    full = run(FP32)
    if full is None:
        return
    yield full
    culprit = found.culprit
    if culprit is None or culprit.kind != "op":
        return
    if found.autocast == "float16":
        yield from (_judged(one, full) for one in _ran(run(BF16)))
    for plan in _line_trials(culprit, in_fp32=full.trial.good):
        tried = _grown(plan, run) if plan.kind == "statement" else _narrowed(plan, run)
        if tried is not None and (plan.kind in _IN_FP32 or tried.stable or tried.rewrite):
            yield (judged := _judged(tried, full))
            near = not (judged.trial.error_as_written or 0) > FAR
            if plan.kind in ("statement", "slice") and tried.trial.good and near:
                break
    if full.trial.good and culprit.module and culprit.dtype in HALF_NAMES:
        island = TrialPlan(
            name=f"{culprit.module!r} in FP32",
            kind="island",
            module=culprit.module,
            scale=CALIBRATED,
        )
        yield from (_judged(one, full) for one in _ran(run(island)))
    if event.kind == "scale" or culprit.phase == "backward":
        yield from _lower_scale(event, run)


def _line_trials(culprit: Culprit, *, in_fp32: bool) -> Iterator[TrialPlan]:
    """Yield the changes of the culprit's line; the whole function comes last, if the line is not enough."""
    if not culprit.file:
        return
    same: dict[str, Any] = {"places": ((culprit.file, culprit.line),), "scale": CALIBRATED}
    yield TrialPlan(name="the rewritten expression", kind="composition", **same)
    yield TrialPlan(name=f"stable operations for {culprit.op}", kind="stable", **same)
    if in_fp32 and culprit.dtype in HALF_NAMES:
        yield TrialPlan(name="this line in FP32", kind="statement", **same)
        name = "this line and those that lead to it in FP32"
        yield TrialPlan(name=name, kind="slice", **same)
        yield TrialPlan(name="the function around this line in FP32", kind="function", **same)


def _grown(plan: TrialPlan, run: Run) -> TrialResult | None:
    """Run a change of a line; as long as the next bad number comes from another line, change that one too."""
    tried = run(plan)
    while tried is not None and not tried.trial.good and len(plan.places) < _LINES:
        place = tried.following
        if place is None or place in plan.places:
            break
        places = (*plan.places, place)
        plan = plan.model_copy(update={"places": places, "name": f"{name_lines(places)} in FP32"})
        tried = run(plan)
    return tried


def _narrowed(plan: TrialPlan, run: Run) -> TrialResult | None:
    """Run a change; if a layer with 16-bit weights rejects a rewritten expression, cast its result."""
    tried = run(plan)
    if plan.kind != "composition" or tried is None or "dtype" not in tried.trial.note:
        return tried
    return run(plan.model_copy(update={"narrow": True}))


def _ran(result: TrialResult | None) -> Iterator[TrialResult]:
    if result is not None:
        yield result


def _lower_scale(event: Event, run: Run) -> Iterator[TrialResult]:
    """Find the largest lower loss scale at which the step is good, by halving an interval of exponents."""
    if event.scale <= 1.0:
        return
    steps = int(math.log2(event.scale))
    bad, good, best = 0, steps + 1, None
    while good - bad > 1:
        middle = (good + bad) // 2
        scale = event.scale / 2.0**middle
        result = run(TrialPlan(name=f"loss scale {scale:g}", kind="scale", scale=scale))
        if result is None:
            return
        if result.trial.good:
            good, best = middle, result
        else:
            bad = middle
    yield from _ran(best)


def _judged(tried: TrialResult, full: TrialResult) -> TrialResult:
    """Note how far the gradients are from those of FP32."""
    if not tried.trial.good:
        return tried
    error = relative_error(tried.gradients, full.gradients)
    trial = tried.trial.model_copy(update={"error_as_written": error})
    return tried.model_copy(update={"trial": trial})


def relative_error(one: str, other: str) -> float | None:
    """Return the relative error of all gradients together, as a norm."""
    if not one or not other:
        return None
    a, b = read_gradients(one), read_gradients(other)
    return relative(*squared_difference([a], [b])) if a.shape == b.shape else None


def read_gradients(file: str) -> Tensor:
    """Read the gradients that a trial has kept, one after the other."""
    return torch.frombuffer(bytearray(Path(file).read_bytes()), dtype=torch.float64)


class Approach:
    """Waits for the step of an event, and begins there."""

    def __init__(self, plan: PassPlan, bus: HookBus, event: Event, outermost: CodeType) -> None:
        self.plan, self.bus, self.event, self._outermost = plan, bus, event, outermost
        self.has_begun = False
        self._losses: list[float] = []

    @abstractmethod
    def begin(self, first: nn.Module | None, args: Any) -> None:
        """Begin at the step; ``first`` is a module that is being called, with its arguments."""

    @abstractmethod
    def on_finished(self, error: str, ended: Ended) -> NoReturn:
        """Answer after the script's end."""

    def prepare(self) -> None:
        """Listen; begin at once, or arrange the beginning, if the event is in the first step."""
        self.bus.listen(self)
        if self.plan.start == "script":
            self._begin(None, ())
        elif self.plan.start == "first module" or self.event.backward == 0:
            self._wait_for_module()

    def _wait_for_module(self) -> None:
        def enter(module: nn.Module, args: Any) -> None:
            if torch.is_grad_enabled() and not self.has_begun:
                handle.remove()
                self._begin(module, args)

        handle = register_module_forward_pre_hook(enter)

    def _begin(self, first: nn.Module | None, args: Any) -> None:
        self.has_begun = True
        self.begin(first, args)

    def on_backward(self, call: BackwardCall) -> None:
        if not self.has_begun and call.accumulates:
            with self.bus.unobserved():
                self._losses.append(first_number(call.losses))

    def on_step_begins(self) -> None:
        if not self.has_begun and self.bus.backward == self.event.backward:
            self._begin(None, ())

    @property
    def differs_at(self) -> int | None:
        """The first loss on the way that is not that of the first pass."""
        return first_difference(self._losses, read_losses(self.plan.losses))


_KEPT_ELEMENTS = 50_000_000  # of gradients that are compared with those of FP32
Send = Callable[[TrialResult], NoReturn]


def force_fp32(bus: HookBus, changes: ExitStack) -> None:
    """Run what follows in FP32, until the changes are put back."""
    facts = bus.parameters, bus.optimizers, bus.casts
    bus.engine_mode = changes.enter_context(process_in_fp32(*facts))
    changes.callback(setattr, bus, "engine_mode", nullcontext())


@contextmanager
def bf16_regions(bus: HookBus) -> Iterator[None]:
    """Let FP16 autocast regions be of BF16."""
    half = [one for one in ("cpu", "cuda") if torch.get_autocast_dtype(one) is torch.float16]
    for device in half:
        torch.set_autocast_dtype(device, torch.bfloat16)
    torch.clear_autocast_cache()
    bus.region_dtype = torch.bfloat16
    try:
        yield
    finally:
        bus.region_dtype = None
        for device in half:
            torch.set_autocast_dtype(device, torch.float16)


@contextmanager
def _island(module: nn.Module) -> Iterator[None]:
    kept = [(one, one.data) for one in (*module.parameters(), *module.buffers())]
    fp32_island(module)
    try:
        yield
    finally:
        remove_island(module)
        for tensor, data in kept:
            tensor.data = data


class Trying(Approach):
    """Applies a change at the beginning of the bad step, and answers after its backward pass or its step."""

    def __init__(
        self,
        plan: PassPlan,
        bus: HookBus,
        event: Event,
        outermost: CodeType,
        trial: TrialPlan,
        send: Send,
    ) -> None:
        super().__init__(plan, bus, event, outermost)
        self._trial, self._send = trial, send
        self._loss = self._norm = math.nan
        self._gradients = ""
        self._change = line_change(trial.kind, trial.places, narrow=trial.narrow)
        self._judged = False  # the backward pass of the step was good
        self._bad_before: set[int] = set()  # storages of parameters
        self._watch: OperationWatch | None = None  # of changes that may grow
        self.changes = ExitStack()  # what has to be put back, if the process goes on

    def begin(self, first: nn.Module | None, args: Any) -> None:  # noqa: ARG002
        self.has_begun = True
        torch.compiler.set_stance("force_eager")  # compiled anew, each trial would take long
        trial, bus = self._trial, self.bus
        if trial.kind == "fp32":
            force_fp32(bus, self.changes)
        elif trial.kind == "bf16":
            self.changes.enter_context(bf16_regions(bus))
        elif trial.kind == "island":
            self._make_island(first)
        elif self._change is not None:
            self._change.begin()
            self.changes.callback(self._change.end)
        with bus.unobserved():
            self._bad_before = storages(bad_tensors(bus.parameters))
        if trial.kind == "statement":
            self._watch = OperationWatch(ModuleStack(), self._outermost)
            self.changes.enter_context(self._watch)

    def on_scaling(self, scaler: Any) -> None:
        """Set the scale of the trial; not before: the last step's gradients have the old one."""
        if not self.has_begun or self._trial.scale is None:
            return
        if scaler._scale is None:
            scaler._init_scale = self._trial.scale
        else:
            with self.bus.unobserved():
                scaler._scale.fill_(self._trial.scale)

    def _make_island(self, first: nn.Module | None) -> None:
        """Put the module in FP32, as soon as its root is known."""
        modules = CalledModules()

        def enter(module: nn.Module, _args: Any) -> None:
            if not modules.has_root(module):
                modules.name_root(module)
                found = modules.module_at(self._trial.module)
                if found is not None:
                    self.changes.enter_context(_island(found))
                    handle.remove()

        handle = register_module_forward_pre_hook(enter)
        self.changes.callback(handle.remove)
        if first is not None:
            enter(first, ())
        # A module of its own, such as a loss, has begun to run when its hooks are called.
        name, _, path = self._trial.module.partition(".")
        for module in gc.get_objects():
            if issubclass(type(module), nn.Module) and type(module).__name__ == name:
                with contextlib.suppress(AttributeError):
                    self.changes.enter_context(_island(module.get_submodule(path)))

    # -- what the loop does

    def on_backward(self, call: BackwardCall) -> None:
        super().on_backward(call)
        if self.has_begun and call.accumulates:
            with self.bus.unobserved():
                self._loss = first_number(call.losses)
                bad = bad_tensors(call.losses)
            if bad:
                self._end(good=False)

    def on_backward_done(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        if not self.has_begun:
            return
        with self.bus.unobserved():
            bad = bad_tensors(gradients)
            scale = self.bus.scale if call.scaled else 1.0
            norms = [g.detach().float().norm() for g in gradients if not g.is_sparse]
            self._norm = float(torch.stack(norms).norm()) / scale if norms else 0.0
        if bad:
            note = f"the gradients overflow at loss scale {scale:g}" if call.scaled else ""
            self._end(good=False, note=note)
        if call.accumulates:
            self._judged = True
            self._keep(gradients, scale)
            if self.event.kind != "parameters":
                self._end(good=True)

    def on_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.has_begun or not self._judged:
            return
        with self.bus.unobserved():
            bad = bad_tensors(parameters_of(optimizer))
        self._end(good=storages(bad) <= self._bad_before)

    def on_backward_failed(self, error: RuntimeError) -> None:
        if self.has_begun:
            self._end(good=False, note=f"{type(error).__name__}: {error}")

    def on_looked(self, tensor: Tensor, _how: str) -> None:
        if self.has_begun and (tensor.requires_grad or self.event.kind == "looked"):
            self._end(good=False)

    def on_finished(self, error: str, ended: Ended) -> NoReturn:
        note = error or f"the script ended ({ended}) before the step"
        self._end(good=self._judged and not error, note=note)

    # -- the answer

    def _keep(self, gradients: list[Tensor], scale: float) -> None:
        """Keep the gradients in a file, to compare them with those of other trials."""
        if sum(g.numel() for g in gradients) > _KEPT_ELEMENTS:
            return
        with self.bus.unobserved():
            wide = [g.detach().double().cpu() / scale for g in gradients if not g.is_sparse]
        self._gradients = f"{self.plan.answer}.{self._trial.kind}.gradients"
        with open(self._gradients, "wb") as file:  # noqa: PTH123
            file.writelines(g.numpy().tobytes() for g in wide)

    def _end(self, *, good: bool, note: str = "") -> NoReturn:
        os.chdir(self.plan.base)  # paths of a patch begin there, wherever the script has gone
        if good and self._norm == 0:
            note = "all gradients are 0, so nothing is learned"
        facts = {} if self._change is None else self._change.facts()
        last = None if self._watch is None else self._watch.last
        if last is not None and not good and last.culprit.file:
            facts["following"] = last.culprit.file, last.culprit.line
        trial = ReplayTrial(
            name=str(facts.get("rewrite") or self._trial.name).rstrip("."),
            good=good,
            loss=self._loss,
            grad_norm=self._norm,
            note=" ".join(note.split())[:200],
        )
        self._send(TrialResult(plan=self._trial, trial=trial, gradients=self._gradients, **facts))
