"""Run the bad step once more under one change, and tell whether it is good.

A trial in FP32 forces the rest of the process into it, whatever the script asks for: autocast is switched
off, half parameters and optimizer state become FP32, and a function mode lifts half arguments of every call
and rewrites half dtypes. Custom kernels and frameworks that keep half weights outside of torch's optimizers
(DeepSpeed) are not reached.

Run the script again, at full speed, up to the step of the event; only then something begins.

The place to begin is the end of the backward pass before the event, so that the optimizer's step lies inside.
For the first step it is the first call of a module, or the script's first line. On the way the losses
are compared with those of the first pass, bit by bit.
"""

from __future__ import annotations

import gc
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from halfguard.investigation.called_modules import CalledModules
from halfguard.investigation.finite import bad_tensors, first_number, storages
from halfguard.investigation.line_changes import line_change
from halfguard.investigation.passes import (
    Ended,
    Event,
    PassPlan,
    TrialPlan,
    TrialResult,
    first_difference,
    read_losses,
)
from halfguard.investigation.training_loop import BackwardCall, Look, LoopObserver, TrainingLoop
from halfguard.precision.islands import fp32_island
from halfguard.precision.modes import HALF_DTYPES, without_autocast
from halfguard.records.autopsy import ReplayTrial
from halfguard.step.parameters import parameters_of


class Approach(LoopObserver):
    """Waits for the step of an event, and begins there."""

    def __init__(self, plan: PassPlan, loop: TrainingLoop, event: Event) -> None:
        self.plan, self.loop, self.event = plan, loop, event
        self.has_begun = False
        self._losses: list[float] = []

    @abstractmethod
    def begin(self, first: nn.Module | None, args: Any) -> None:
        """Begin at the step; ``first`` is a module that is being called, with its arguments."""

    @abstractmethod
    def finish(self, error: str, ended: Ended) -> NoReturn:
        """Answer after the script's end."""

    def prepare(self) -> None:
        """Begin at once, or arrange the beginning, if the event is in the first step."""
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

    def before_backward(self, call: BackwardCall) -> None:
        if not self.has_begun and call.accumulates:
            with self.loop.unobserved():
                self._losses.append(first_number(call.losses))

    def between_steps(self) -> None:
        if not self.has_begun and self.loop.backward == self.event.backward:
            self._begin(None, ())

    @property
    def differs_at(self) -> int | None:
        """The first loss on the way that is not that of the first pass."""
        return first_difference(self._losses, read_losses(self.plan.losses))


# Calls that must see their own tensor.
_AS_THEY_ARE = frozenset({
    "__get__", "__set__", "__delete__", "__deepcopy__", "__repr__", "requires_grad_", "retain_grad",
    "register_hook", "register_post_accumulate_grad_hook", "detach_", "data_ptr", "element_size",
    "is_floating_point", "untyped_storage", "storage", "numel", "size", "dim",
})  # fmt: skip

_FOR_GOOD: list[Any] = []  # contexts that are never left; one that is forgotten would end


def force_fp32(parameters: Iterable[Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Run the rest of this process in FP32."""
    context = without_autocast()
    context.__enter__()
    _FOR_GOOD.append(context)
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, False)
    torch.clear_autocast_cache()
    if torch.get_default_dtype() in HALF_DTYPES:
        torch.set_default_dtype(torch.float32)
    for parameter in (*parameters, *_frozen_parameters()):
        if parameter.dtype in HALF_DTYPES:
            grad, parameter.grad = parameter.grad, None  # torch rejects a gradient of another dtype
            parameter.data = parameter.data.float()
            parameter.grad = None if grad is None else grad.float()
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for key, value in state.items():
                state[key] = _wide(value)
    lift = FP32Arguments()
    lift.__enter__()  # type: ignore[no-untyped-call]
    _lift_in_backward(lift)


def _frozen_parameters() -> list[Tensor]:
    """Return parameters that no optimizer has, such as those of a model with adapters.

    Where a library multiplies them in a function of its own, no argument of torch is lifted.
    """
    found = [one for one in gc.get_objects() if issubclass(type(one), nn.Parameter)]
    return [one for one in found if not one.requires_grad]


def force_bf16() -> None:
    """Let every FP16 autocast region of the rest of this process be one of BF16."""
    enter: Any = torch.autocast.__enter__

    def enter_bf16(self: torch.autocast) -> Any:
        if self.fast_dtype is torch.float16:
            self.fast_dtype = torch.bfloat16
        return enter(self)

    torch.autocast.__enter__ = enter_bf16  # type: ignore[method-assign]
    for device in ("cpu", "cuda"):
        if torch.get_autocast_dtype(device) is torch.float16:
            torch.set_autocast_dtype(device, torch.bfloat16)
    torch.clear_autocast_cache()


class FP32Arguments(TorchFunctionMode):
    """Lifts half arguments of every call to FP32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in (Tensor.half, Tensor.bfloat16):
            return args[0].float()
        if name in _AS_THEY_ARE:
            return func(*args, **kwargs)
        if (
            name.endswith("_") and not name.endswith("__") and args
        ):  # what is written keeps its dtype
            return func(args[0], *tree_map(_wide, args[1:]), **tree_map(_wide, kwargs))
        return func(*tree_map(_wide, args), **tree_map(_wide, kwargs))


def _lift_in_backward(mode: FP32Arguments) -> None:
    """Keep the mode during backward passes: hooks, functions of the user, checkpointed blocks.

    A mode is off inside the function that it intercepts, which is what starts a backward pass.
    """
    original: Any = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return original(*args, **kwargs)

    for owner in (torch.autograd.graph, torch.autograd):
        owner._engine_run_backward = run_backward  # type: ignore[attr-defined]


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF_DTYPES else value
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF_DTYPES else value


_KEPT_ELEMENTS = 50_000_000  # of gradients that are compared with those of FP32
Send = Callable[[TrialResult], NoReturn]


class Trying(Approach):
    """Applies a change at the beginning of the bad step, and answers after its backward pass or its step."""

    def __init__(
        self, plan: PassPlan, loop: TrainingLoop, event: Event, trial: TrialPlan, send: Send
    ) -> None:
        super().__init__(plan, loop, event)
        self._trial, self._send = trial, send
        self._loss = self._norm = math.nan
        self._gradients = ""
        self._change = line_change(trial)
        self._scaled = False
        self._judged = False  # the backward pass of the step was good
        self._bad_before: set[int] = set()  # storages of parameters

    def begin(self, first: nn.Module | None, args: Any) -> None:  # noqa: ARG002
        self.has_begun = True
        trial = self._trial
        if trial.kind == "fp32":
            # Not unobserved: leaving that would restore the autocast that this switches off.
            with torch.no_grad():
                force_fp32(self.loop.parameters, self.loop.optimizers)
        elif trial.kind == "bf16":
            force_bf16()
        elif trial.kind == "island":
            self._make_island(first)
        elif self._change is not None:
            self._change.begin()
        with self.loop.unobserved():
            self._bad_before = storages(bad_tensors(self.loop.parameters))

    def before_scaling(self, scaler: Any) -> None:
        """Set the scale of the trial; not before: the last step's gradients have the old one."""
        self._scaled |= self.has_begun
        if not self.has_begun or self._trial.scale is None:
            return
        if scaler._scale is None:
            scaler._init_scale = self._trial.scale
        else:
            with self.loop.unobserved():
                scaler._scale.fill_(self._trial.scale)

    def _make_island(self, first: nn.Module | None) -> None:
        """Put the module in FP32, as soon as its root is known."""
        modules = CalledModules()

        def enter(module: nn.Module, _args: Any) -> None:
            if not modules.has_root(module):
                modules.name_root(module)
                found = modules.module_at(self._trial.module)
                if found is not None:
                    fp32_island(found)
                    handle.remove()

        handle = register_module_forward_pre_hook(enter)
        if first is not None:
            enter(first, ())

    # -- what the loop does

    def before_backward(self, call: BackwardCall) -> None:
        super().before_backward(call)
        if self.has_begun and call.accumulates:
            with self.loop.unobserved():
                self._loss = first_number(call.losses)
                bad = bad_tensors(call.losses)
            if bad:
                self._end(good=False)

    def after_backward(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        if not self.has_begun:
            return
        with self.loop.unobserved():
            bad = bad_tensors(gradients)
            scale = self.loop.scale if call.scaled else 1.0
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

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.has_begun or not self._judged:
            return
        with self.loop.unobserved():
            bad = bad_tensors(parameters_of(optimizer))
        self._end(good=storages(bad) <= self._bad_before)

    def backward_failed(self, error: RuntimeError) -> None:
        if self.has_begun:
            self._end(good=False, note=f"{type(error).__name__}: {error}")

    def looked(self, look: Look) -> None:
        if self.has_begun and (look.tensor.requires_grad or self.event.kind == "looked"):
            self._end(good=False)

    def finish(self, error: str, ended: Ended) -> NoReturn:
        note = error or f"the script ended ({ended}) before the step"
        self._end(good=self._judged and not error, note=note)

    # -- the answer

    def _keep(self, gradients: list[Tensor], scale: float) -> None:
        """Keep the gradients in a file, to compare them with those of other trials."""
        if sum(g.numel() for g in gradients) > _KEPT_ELEMENTS:
            return
        with self.loop.unobserved():
            wide = [g.detach().double().cpu() / scale for g in gradients if not g.is_sparse]
        self._gradients = f"{self.plan.answer}.{self._trial.kind}.gradients"
        with open(self._gradients, "wb") as file:  # noqa: PTH123
            file.writelines(g.numpy().tobytes() for g in wide)

    def _end(self, *, good: bool, note: str = "") -> NoReturn:
        if good and self._norm == 0:
            note = "all gradients are 0: finite, but nothing is learnt"
        trial = ReplayTrial(
            name=self._trial.name,
            good=good,
            loss=self._loss,
            grad_norm=self._norm,
            note=" ".join(note.split())[:200],
        )
        os.chdir(self.plan.base)  # paths of a patch begin there, wherever the script has gone
        facts = {} if self._change is None else self._change.facts()
        facts |= {"gradients": self._gradients, "scaled": self._scaled}
        self._send(TrialResult(plan=self._trial, trial=trial, **facts))
