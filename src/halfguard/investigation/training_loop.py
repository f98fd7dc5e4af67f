"""Sensors on the training loop of somebody else's script: every backward pass, optimizer step and look.

Every backward pass of torch runs through one function, ``torch.autograd.graph._engine_run_backward``: that of
a plain loop, of Lightning, transformers, Accelerate and DDP. It is private, so a version of torch without it
is answered with a message. Beside it stand the scaler (to know a loss before it is scaled), the optimizers
(to know the parameters), and the functions by which a script looks at its loss itself.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from halfguard.errors import UsageError
from halfguard.investigation.scaled_losses import ScaledLosses
from halfguard.replaying.function_modes import Place, user_place
from halfguard.step.parameters import parameters_of
from halfguard.tracing.call_arguments import undispatched

_LOOKS = ("item", "__float__", "isnan", "isfinite", "isinf")
_WORKER_OPTIONS = (
    *("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context"),
    *("worker_init_fn", "timeout"),
)
_isfinite = torch.isfinite  # before it is replaced


@dataclass(frozen=True)
class BackwardCall:
    """One call of the engine: the losses before they were scaled, and what was passed to the engine."""

    losses: list[Tensor]
    outputs: list[Tensor]
    scaled: bool  # or it is not known
    accumulates: bool  # into .grad; False for torch.autograd.grad
    scaler: Any = None  # that has scaled all of them, if it is known
    creates_graph: bool = False  # its results are used in another loss


@dataclass(frozen=True)
class Look:
    """The script read a number that is not finite."""

    tensor: Tensor
    how: str


class LoopObserver:
    """Is told what the loop does. This base class does nothing."""

    def before_scaling(self, scaler: Any) -> None:
        """A loss is about to be scaled."""

    def before_backward(self, call: BackwardCall) -> None:
        """A backward pass is about to run."""

    def after_backward(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        """A backward pass has run; ``gradients`` are those of the optimizers' parameters, or its results."""

    def backward_failed(self, error: RuntimeError) -> None:
        """A backward pass raised."""

    def between_steps(self) -> None:
        """A backward pass is finished and counted."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""

    def looked(self, look: Look) -> None:
        """The script read a number that is not finite, with gradients enabled."""


@dataclass
class TrainingLoop:
    """What is known of the script's loop."""

    observer: LoopObserver = field(default_factory=LoopObserver)
    alone: bool = False  # loaders work in this process, so that their operations are seen
    backward: int = 0  # finished backward passes
    steps: int = 0  # optimizer steps
    scaler: Any = None
    _optimizers: list[weakref.ref[Any]] = field(default_factory=list)
    # Without an optimizer: what the last backward pass gave gradients to.
    _leaves: list[weakref.ref[Tensor]] = field(default_factory=list)
    scaled_losses: ScaledLosses = field(default_factory=ScaledLosses)
    _scaling: bool = False  # a method of a scaler runs, which may call that of its base class
    raw_step: Place | None = None  # the first line that stepped on gradients that were still scaled
    workers: bool = False  # a loader has worker processes
    not_updated: int = 0  # scaled backward passes since the scaler's last update
    _holds_scaled: bool = False  # a scaled backward pass, and the scaler has not unscaled since
    # Optimizers that the scaler has stepped since the last backward pass.
    _by_scaler: MutableMapping[Any, bool] = field(default_factory=WeakIdKeyDictionary)
    _in_scaler: bool = False  # it is stepping now
    scaler_steps: int = 0
    _skipped: weakref.ref[Any] | None = (
        None  # the optimizer of the scaler's last step, if it did not step
    )
    _unscaled: bool = False  # a backward pass without a scaler has given gradients too
    _busy: bool = False

    def install(self) -> None:
        """Put the sensors on torch; they stay for the life of the process."""
        raise_if_unsupported()
        self._watch_engine()
        self._watch_optimizers()
        self._watch_scaler()
        self._watch_loaders()
        for name in _LOOKS:
            for owner in (torch.Tensor, torch):
                if hasattr(owner, name):
                    self._watch_looks(owner, name)

    @property
    def holds_scaled(self) -> bool:
        """Return whether all gradients are multiplied by the loss scale now, as far as torch knows."""
        by_hand = self.scaled_losses.was_read  # the script may have divided them itself
        return self._holds_scaled and not (self._busy or self._unscaled or by_hand)

    def was_skipped(self, optimizer: Any) -> bool:
        """Return whether the scaler's last step was one of this optimizer, and skipped it."""
        skipped = None if self._skipped is None else self._skipped()
        return skipped is not None and skipped in (optimizer, getattr(optimizer, "optimizer", None))

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that are alive."""
        return [found for one in self._optimizers if (found := one()) is not None]

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all optimizers; of the last backward pass, if the script updates them itself."""
        if not self._optimizers:
            return [leaf for one in self._leaves if (leaf := one()) is not None]
        return [p for optimizer in self.optimizers for p in parameters_of(optimizer)]

    @property
    def scale(self) -> float:
        """The present loss scale; 1 without a scaler."""
        return self.scale_of(self.scaler)

    def scale_of(self, scaler: Any) -> float:
        """Return the scale of a scaler; 1 without one."""
        scale = None if scaler is None else scaler._scale
        with self.unobserved():
            return 1.0 if scale is None else float(scale)

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Run the block below modes and autocast, without gradients and without sensors."""
        busy, self._busy = self._busy, True
        try:
            with undispatched(), torch.no_grad():
                yield
        finally:
            self._busy = busy

    # -- one sensor each

    def _watch_engine(self) -> None:
        original: Any = torch.autograd.graph._engine_run_backward

        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [t for t in outputs if type(t) is Tensor]
            if self._busy or len(tensors) < len(outputs) or _is_transformed():
                return original(outputs, *args, **kwargs)
            call = self._read(tensors, args, accumulates=bool(kwargs.get("accumulate_grad")))
            self.observer.before_backward(call)
            if call.accumulates and not self._optimizers:
                self._leaves = [weakref.ref(leaf) for leaf in _leaves_of(tensors)]
            self._busy = True  # a checkpointed block may run the engine inside of it
            try:
                out = original(outputs, *args, **kwargs)
            except RuntimeError as error:
                self.observer.backward_failed(error)
                raise
            finally:
                self._busy = False
            grads = [p.grad for p in self.parameters] if call.accumulates else out
            self.observer.after_backward(call, [g for g in grads if isinstance(g, Tensor)])
            if call.accumulates:
                self._holds_scaled = call.scaled
                self._unscaled |= not call.scaled
                self._by_scaler.clear()
                self.not_updated += call.scaled
                self.backward += 1
                self.steps += not self._optimizers
                self.observer.between_steps()
            return out

        for owner in (torch.autograd.graph, torch.autograd):
            owner._engine_run_backward = run_backward  # type: ignore[attr-defined]

    def _read(
        self, outputs: list[Tensor], options: tuple[Any, ...], *, accumulates: bool
    ) -> BackwardCall:
        known = [self.scaled_losses.get(output) for output in outputs]
        losses = [o if one is None else one.raw for o, one in zip(outputs, known, strict=True)]
        scalers = {None if one is None else one.scaler() for one in known}
        scaled = any(known)
        if not scaled:
            with self.unobserved():
                scaled = self.scaled_losses.may_be_in(outputs, options[0] if options else ())
        return BackwardCall(
            losses,
            outputs,
            scaled,
            accumulates,
            scalers.pop() if len(scalers) == 1 else None,
            creates_graph=len(options) > 2 and bool(options[2]),
        )

    def _watch_optimizers(self) -> None:
        original = torch.optim.Optimizer.__init__

        @wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(optimizer, *args, **kwargs)
            self._optimizers.append(weakref.ref(optimizer))

        setattr(torch.optim.Optimizer, __init__.__name__, __init__)

        def stepped(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            if not self._busy:
                # Gradients that are still scaled, or that the scaler has used or rejected before.
                raw = self._holds_scaled or optimizer in self._by_scaler
                if raw and not self._in_scaler and self.raw_step is None:
                    self.raw_step = user_place()
                self.observer.after_step(optimizer)
                self.steps += 1
                self._skipped = None

        register_optimizer_step_post_hook(stepped)

    def _watch_scaler(self) -> None:
        kind: Any = torch.amp.GradScaler
        original, get_scale = kind.__init__, kind.get_scale
        watched = {kind, object}

        @wraps(original)
        def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            for one in type(
                scaler
            ).__mro__:  # classes that have methods of their own, as that of FSDP
                if one not in watched:
                    watched.add(one)
                    self._watch_scaling(one)
            original(scaler, *args, **kwargs)

        def read(scaler: Any) -> float:
            self.scaled_losses.note_reading(scaler)
            return float(get_scale(scaler))

        kind.__init__, kind.get_scale = __init__, read
        self._watch_scaling(kind)
        self._watch_scaler_step()

    def _watch_scaling(self, kind: Any) -> None:
        """Watch the methods that a class of scalers has itself."""
        if "scale" in vars(kind):
            self._watch_scale(kind)
        if "unscale_" in vars(kind):
            unscale = kind.unscale_

            @wraps(unscale)
            def unscale_(scaler: Any, *args: Any, **kwargs: Any) -> None:
                self._holds_scaled = False
                unscale(scaler, *args, **kwargs)

            kind.unscale_ = unscale_
        if "update" in vars(kind):
            original = kind.update

            @wraps(original)
            def update(scaler: Any, *args: Any, **kwargs: Any) -> None:
                self.not_updated = 0
                self.scaled_losses.note_update(scaler)
                original(scaler, *args, **kwargs)

            kind.update = update

    def _watch_scale(self, kind: Any) -> None:
        original = kind.scale

        @wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            if self._scaling or not scaler.is_enabled():
                return original(scaler, outputs)
            self.observer.before_scaling(scaler)
            self._scaling = True
            try:
                scaled = original(scaler, outputs)
            finally:
                self._scaling = False
            self.scaler = scaler
            self.scaled_losses.note(scaler, scaled, outputs)
            return scaled

        kind.scale = scale

    def _watch_scaler_step(self) -> None:
        original: Any = torch.amp.GradScaler.step

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._holds_scaled = False
            self._in_scaler = True
            self._skipped = weakref.ref(optimizer) if scaler.is_enabled() else None
            self.scaler_steps += 1
            try:
                return original(scaler, optimizer, *args, **kwargs)
            finally:
                self._in_scaler = False
                if scaler.is_enabled():
                    self._by_scaler[optimizer] = True
                    if _has_skipped(scaler, optimizer):
                        self._skipped = weakref.ref(optimizer)

        setattr(torch.amp.GradScaler, step.__name__, step)

    def _watch_loaders(self) -> None:
        """Note loaders with worker processes; without them, if ``self.alone``."""
        original: Any = torch.utils.data.DataLoader.__init__

        @wraps(original)  # Lightning reads the names of its arguments
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            wanted = kwargs.get("num_workers", args[5] if len(args) > 5 else 0)
            self.workers |= bool(wanted)
            if wanted and self.alone:
                args = (*args[:5], 0, *args[6:]) if len(args) > 5 else args
                for name in _WORKER_OPTIONS:
                    kwargs.pop(name, None)
            original(loader, *args, **kwargs)

        setattr(torch.utils.data.DataLoader, __init__.__name__, __init__)

    def _watch_looks(self, owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        @wraps(original)
        def look(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            tensor = args[0] if args else kwargs.get("input")
            # Subclasses stand for tensors without numbers while torch.compile traces.
            if not self._busy and type(tensor) is Tensor and _is_one_number(tensor):
                self._look(tensor, name)
            return result

        setattr(owner, name, look)

    def _look(self, tensor: Tensor, how: str) -> None:
        evaluates = not tensor.requires_grad and not torch.is_grad_enabled()
        if evaluates:  # or steps an optimizer
            return
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if caller.startswith(("torch.", "halfguard.")):
            return
        if self.scaled_losses.get(tensor) is not None:  # a scaled loss may be infinite
            return
        with self.unobserved():
            finite = bool(_isfinite(tensor.detach()).all())
        if not finite:
            self.observer.looked(Look(tensor, how))


def raise_if_unsupported() -> None:
    """Raise if this version of torch has no place where every backward pass can be seen."""
    modules = torch.autograd.graph, torch.autograd
    if not all(callable(getattr(module, "_engine_run_backward", None)) for module in modules):
        raise UsageError(
            f"torch {torch.__version__} has no torch.autograd.graph._engine_run_backward, the one function "
            "that every backward pass runs through, so a script cannot be observed from outside.",
            cure="Use torch 2.9 to 2.15, or call halfguard.find_first_nonfinite in the script.",
        )


def _leaves_of(outputs: list[Tensor]) -> list[Tensor]:
    """Return the tensors that a backward pass gives gradients to."""
    waiting = [output.grad_fn for output in outputs]
    seen, found = set[Any](), list[Tensor]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            found.append(variable)
        waiting += [following for following, _ in node.next_functions]
    return found


def _has_skipped(scaler: Any, optimizer: Any) -> bool:
    """Return whether an optimizer that looks at the scale itself (a fused one) left out its step."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    found = scaler._found_inf_per_device(optimizer)
    return any(bool(one) for one in found.values())


def _is_one_number(tensor: Tensor) -> bool:
    return tensor.numel() == 1 and tensor.is_floating_point() and not tensor.is_meta


def _is_transformed() -> bool:
    """Return whether torch.compile or torch.func run the code, with tensors that hold no numbers."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return torch.compiler.is_compiling()
