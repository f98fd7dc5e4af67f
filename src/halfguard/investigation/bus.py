"""One hook bus: each symbol of torch that has to be seen is replaced once, and what happens is published.

A listener is any object; each of its methods ``on_EVENT`` is called when that happens:

| event | with |
|---|---|
| ``backward``, ``backward_done``, ``backward_failed`` | a ``BackwardCall``; with gradients; the error |
| ``step_begins`` | nothing: a backward pass is finished and counted |
| ``stepping``, ``stepped`` | an optimizer, before and after its step |
| ``looked`` | a tensor that the script read, whose number is not finite, and how |
| ``read`` | a tensor whose numbers a line of the user takes out of torch |
| ``scaler_made``, ``scaling``, ``scaled`` | scaler and requested device; a scaler, before and after |
| ``unscaling``, ``scaler_stepped``, ``scaler_done`` | scaler and optimizer; done: it did not raise |
| ``scaler_failed`` | optimizer and error |
| ``clipping``, ``clipped`` | parameters, before; norm and limit |
| ``scheduled``, ``zeroed`` | a schedule; an optimizer or a model |
| ``optimizer_made``, ``module_made``, ``copied`` | the object |
| ``casting``, ``cast`` | a module, before; a module, and its parameters that became half |
| ``autocast_made``, ``autocast_entered`` | region and requested device; a region, before |
| ``casts_forgotten``, ``state_taken`` | nothing: autocast's cache is cleared, an optimizer's state read |
| ``loading_state`` | an optimizer, and the state that it is about to load |
| ``saving``, ``spawned``, ``operation`` | a path; nothing; an operation, its arguments and its result |
| ``finished`` | the error of the script, and how it ended |

Every backward pass of torch runs through one function, ``torch.autograd.graph._engine_run_backward``: that of
a plain loop, of Lightning, transformers, Accelerate and DDP. It is private, so a version of torch without it
is answered with a message.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from halfguard.errors import UsageError
from halfguard.investigation.scaled_losses import ScaledLosses, nodes_behind
from halfguard.precision.modes import HALF_DTYPES
from halfguard.replaying.function_modes import Place
from halfguard.step.installed import is_installed
from halfguard.step.parameters import parameters_of
from halfguard.tracing.call_arguments import undispatched

_LOOKS = ("item", "__float__", "isnan", "isfinite", "isinf")
_READS = ("tolist", "numpy", "__array__")  # of many numbers
_WORKER_OPTIONS = (
    *("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context"),
    *("worker_init_fn", "timeout"),
)
# Functions whose calls are published as they are: the event, and how many arguments it has.
_TOLD: tuple[tuple[Any, str, str, int], ...] = (
    (LRScheduler, "step", "scheduled", 1),
    (torch, "clear_autocast_cache", "casts_forgotten", 0),
    (torch.multiprocessing, "spawn", "spawned", 0),
    (torch.optim.Optimizer, "load_state_dict", "loading_state", 2),
    (torch.optim.Optimizer, "state_dict", "state_taken", 0),
    (torch.optim.Optimizer, "zero_grad", "zeroed", 1),
    (nn.Module, "zero_grad", "zeroed", 1),
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
    divisor: float = 1.0  # of losses that are made of scaled ones


def first_number(tensors: list[Tensor]) -> float:
    """Return the sum of the first tensor, as a number: the loss of a backward pass."""
    if not tensors:
        return 0.0
    first = tensors[0].detach()
    real = torch.view_as_real(first.resolve_conj()) if first.is_complex() else first
    return float(real.double().sum())


class HookBus:
    """Publishes what a script does, and knows the state of its training loop."""

    def __init__(self, *, alone: bool = False, emulate: bool = False) -> None:
        self._alone = alone  # loaders work in this process, so that their operations are seen
        self._emulate = emulate  # scalers for CUDA are made for the CPU
        self._heard = defaultdict[str, list[Callable[..., None]]](list)
        self._replaced: list[tuple[Any, str, Any]] = []
        self._hooks: list[Any] = []
        self._optimizers: list[weakref.ref[Any]] = []
        # Without an optimizer: what the last backward pass gave gradients to.
        self._leaves: list[weakref.ref[Tensor]] = []
        self.in_scaler = False  # one of its methods runs, which may call others
        self._skipped: weakref.ref[Any] | None = None  # the optimizer of a step that was left out
        self._busy = False
        self.backward = 0  # finished backward passes
        self.steps = 0  # optimizer steps
        self.scaler: Any = None
        self.scaler_steps = 0
        self.not_updated = 0  # scaled backward passes since the scaler's last update
        self.scaled_losses = ScaledLosses()
        self.workers = False  # a loader has worker processes
        self.engine_mode: Any = nullcontext()  # a mode that stays on in backward passes
        self.changes = ExitStack()  # of the rest of the process
        self.region_dtype: torch.dtype | None = None  # instead of FP16
        self.has_scalers = True  # if not, scalers are made that do nothing
        self.casts: dict[Place, None] = {}  # lines whose casts to half that mode leaves out

    def listen(self, *listeners: object) -> None:
        """Add listeners."""
        for listener in listeners:
            for name in dir(listener):
                if name.startswith("on_"):
                    self._heard[name[3:]].append(getattr(listener, name))

    def only(self, listener: object) -> None:
        """Replace all listeners by one."""
        self._heard.clear()
        self.listen(listener)

    def publish(self, event: str, *args: Any) -> None:
        """Tell all listeners of an event."""
        for heard in tuple(self._heard[event]):
            heard(*args)

    def install(self) -> None:
        """Put the sensors on torch."""
        raise_if_unsupported()
        engine = torch.autograd.graph._engine_run_backward.__name__
        for module in (torch.autograd.graph, torch.autograd):
            self._replace(module, engine, self._engine)
        self._watch_optimizers()
        self._watch_scalers()
        self._replace(torch.utils.data.DataLoader, "__init__", self._loader)
        for name in _LOOKS:
            for owner in (Tensor, torch):
                if hasattr(owner, name):
                    self._replace(owner, name, partial(self._look_by, name))
        for name in _READS:
            self._watch(Tensor, name, before=self._read_by_user)
        self._watch_modules()
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._replace(torch.nn.utils, name, self._clip)
        self._replace(torch.autocast, "__init__", self._autocast)
        self._watch(torch.autocast, "__enter__", before=self._enter_region)
        self._watch(torch, "save", before=self._saves)
        for owner, name, event, count in _TOLD:
            self._watch(owner, name, before=partial(self._tell, event, count))

    def _tell(self, event: str, count: int, *args: Any, **kwargs: Any) -> None:
        """Publish a call with its first arguments."""
        self.publish(event, *(*args, *kwargs.values())[:count])

    def remove(self) -> None:
        """Take the sensors away."""
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)
        for hook in self._hooks:
            hook.remove()
        self._replaced, self._hooks = [], []

    # -- what is known of the loop

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

    # -- sensors

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a symbol by what ``make`` returns for it; other libraries read its name and arguments."""
        original = getattr(owner, name)
        self._replaced.append((owner, name, original))
        setattr(owner, name, wraps(original)(make(original)))

    def _watch(self, owner: Any, name: str, *, before: Any = None, after: Any = None) -> None:
        """Call functions with the arguments of a symbol, before and after it."""

        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if before is not None:
                    before(*args, **kwargs)
                out = original(*args, **kwargs)
                if after is not None:
                    after(*args, **kwargs)
                return out

            return call

        self._replace(owner, name, make)

    def _engine(self, original: Any) -> Any:
        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [t for t in outputs if type(t) is Tensor]
            if self._busy or len(tensors) < len(outputs) or is_transformed():
                with self.engine_mode:
                    return original(outputs, *args, **kwargs)
            call = self._read(tensors, args, accumulates=bool(kwargs.get("accumulate_grad")))
            self.publish("backward", call)
            if call.accumulates and not self._optimizers:
                self._leaves = [weakref.ref(leaf) for leaf in _leaves_of(tensors)]
            self._busy = True  # a checkpointed block may run the engine inside of it
            try:
                with self.engine_mode:
                    out = original(outputs, *args, **kwargs)
            except RuntimeError as error:
                self.publish("backward_failed", error)
                raise
            finally:
                self._busy = False
            grads = [p.grad for p in self.parameters] if call.accumulates else out
            self.publish("backward_done", call, [g for g in grads if isinstance(g, Tensor)])
            if call.accumulates:
                self.not_updated += call.scaled
                self.backward += 1
                self.steps += not self._optimizers
                self.publish("step_begins")
            return out

        return run_backward

    def _read(
        self, outputs: list[Tensor], options: tuple[Any, ...], *, accumulates: bool
    ) -> BackwardCall:
        known = [self.scaled_losses.get(output) for output in outputs]
        losses = [o if one is None else one.raw for o, one in zip(outputs, known, strict=True)]
        scalers = {None if one is None else one.scaler() for one in known}
        scaled, divisor = any(known), 1.0
        if not scaled:
            with self.unobserved():
                found = self.scaled_losses.find_in(outputs, options[0] if options else ())
                scaled, divisor = found is not False, (self.scale if found else 1.0) or 1.0
        return BackwardCall(
            losses,
            outputs,
            scaled,
            accumulates,
            scalers.pop() if len(scalers) == 1 else None,
            creates_graph=len(options) > 2 and bool(options[2]),
            divisor=divisor,
        )

    def _watch_optimizers(self) -> None:
        def made(optimizer: Any, *_: Any, **__: Any) -> None:
            self._optimizers.append(weakref.ref(optimizer))
            self.publish("optimizer_made", optimizer)

        def stepping(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not self._busy:
                self.publish("stepping", optimizer)

        def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not self._busy:
                self.publish("stepped", optimizer)
                self.steps += 1
                self._skipped = None

        self._watch(torch.optim.Optimizer, "__init__", after=made)
        self._hooks += [
            register_optimizer_step_pre_hook(stepping),
            register_optimizer_step_post_hook(stepped),
        ]

    def _watch_scalers(self) -> None:
        kind: Any = torch.amp.GradScaler
        signature, watched = inspect.signature(kind.__init__), {kind, object}

        def make(original: Any) -> Any:
            def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
                # Classes that have methods of their own, as that of FSDP.
                for one in {*type(scaler).__mro__} - watched:
                    watched.add(one)
                    self._watch_scaling(one)
                given = signature.bind(scaler, *args, **kwargs)
                given.apply_defaults()
                device, wanted = given.arguments["device"], given.arguments["enabled"]
                given.arguments["enabled"] = wanted and self.has_scalers
                if self._emulate and device == "cuda":
                    given.arguments["device"] = "cpu"
                original(*given.args, **given.kwargs)
                self.publish("scaler_made", scaler, str(device) if wanted else "")

            return __init__

        self._replace(kind, "__init__", make)
        self._watch(kind, "get_scale", before=self.scaled_losses.note_reading)
        self._watch_scaling(kind)

    def _watch_scaling(self, kind: Any) -> None:
        """Watch the methods that a class of scalers has itself."""
        for name in ("scale", "unscale_", "step", "update"):
            if name in vars(kind):
                self._replace(kind, name, partial(self._scaler_method, name))

    def _scaler_method(self, name: str, original: Any) -> Any:
        def call(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            # step() calls unscale_(), and a class of its own that of its base class.
            if self.in_scaler or (name == "scale" and not scaler.is_enabled()):
                return original(scaler, *args, **kwargs)
            given = next(iter((*args, *kwargs.values())), None)
            self._before_scaler(name, scaler, given)
            self.in_scaler = True
            try:
                out = original(scaler, *args, **kwargs)
            except (RuntimeError, ValueError, AssertionError) as error:
                of = given if name in ("unscale_", "step") else None
                self.publish("scaler_failed", of, error)
                raise
            finally:
                self.in_scaler = False
                if name == "step":
                    self._after_scaler_step(scaler, given)
            if name == "scale":
                self.scaler = scaler
                self.scaled_losses.note(scaler, out, given)
                self.publish("scaled", scaler)
            elif name == "step":
                self.publish("scaler_done", scaler, given)
            return out

        return call

    def _before_scaler(self, name: str, scaler: Any, given: Any) -> None:
        if name == "scale":
            self.publish("scaling", scaler)
        elif name == "update":
            self.not_updated = 0
            self.scaled_losses.note_update(scaler)
        else:
            self.publish("unscaling", scaler, given)
        if name == "step":
            self._skipped = weakref.ref(given) if scaler.is_enabled() else None
            self.scaler_steps += 1

    def _after_scaler_step(self, scaler: Any, optimizer: Any) -> None:
        if scaler.is_enabled() and _has_skipped(scaler, optimizer):
            self._skipped = weakref.ref(optimizer)
        self.publish("scaler_stepped", scaler, optimizer)

    def _loader(self, original: Any) -> Any:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            wanted = kwargs.get("num_workers", args[5] if len(args) > 5 else 0)
            self.workers |= bool(wanted)
            if wanted and self._alone:
                args = (*args[:5], 0, *args[6:]) if len(args) > 5 else args
                for name in _WORKER_OPTIONS:
                    kwargs.pop(name, None)
            original(loader, *args, **kwargs)

        return __init__

    def _look_by(self, name: str, original: Any) -> Any:
        def look(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            tensor = args[0] if args else kwargs.get("input")
            # Subclasses stand for tensors without numbers while torch.compile traces.
            if not self._busy and type(tensor) is Tensor and _is_one_number(tensor):
                self._look(tensor, name)
                if name in ("item", "__float__"):
                    self._read_by_user(tensor)
            return result

        return look

    def _read_by_user(self, tensor: Tensor, *_: Any, **__: Any) -> None:
        caller = sys._getframe(2)
        is_own = not is_installed(caller.f_code.co_filename)
        name = caller.f_globals.get("__name__", "")
        if is_own and not self._busy and not name.startswith(("torch.", "halfguard.")):
            self.publish("read", tensor)

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
            self.publish("looked", tensor, how)

    def _watch_modules(self) -> None:
        self._watch(
            nn.Module, "__init__", after=lambda one, *_, **__: self.publish("module_made", one)
        )
        for name in ("half", "bfloat16", "to"):
            self._replace(nn.Module, name, self._cast)

        def copied(one: Any, *_: Any, **__: Any) -> None:
            if isinstance(one, nn.Module):
                self.publish("copied", one)

        self._watch(copy, "deepcopy", before=copied)

    def _cast(self, original: Any) -> Any:
        def cast(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = {id(p) for p in module.parameters() if p.dtype in HALF_DTYPES}
            self.publish("casting", module)
            out = original(module, *args, **kwargs)
            now = (p for p in module.parameters() if p.dtype in HALF_DTYPES)
            self.publish("cast", module, [p for p in now if id(p) not in before])
            return out

        return cast

    def _clip(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def clip(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            name, (parameters, limit, *_) = next(iter(given.arguments)), given.arguments.values()
            clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            given.arguments[name] = clipped  # a generator is used up
            self.publish("clipping", clipped)
            norm = original(*given.args, **given.kwargs)
            self.publish("clipped", norm, limit)
            return norm

        return clip

    def _autocast(self, original: Any) -> Any:
        def __init__(region: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(region, device_type, *args, **kwargs)
            enabled = kwargs.get("enabled", args[1] if len(args) > 1 else True)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller != "torch.utils.checkpoint":  # which makes the region of its block again
                self.publish("autocast_made", region, device_type if enabled else "")

        return __init__

    def _enter_region(self, region: Any) -> None:
        if self.region_dtype is not None and region.fast_dtype is torch.float16:
            region.fast_dtype = self.region_dtype
        self.publish("autocast_entered", region)

    def _saves(self, _obj: Any, f: Any = None, *_: Any, **__: Any) -> None:
        if isinstance(f, str | os.PathLike):
            self.publish("saving", os.fspath(f))


def raise_if_unsupported() -> None:
    """Raise if this version of torch has no place where every backward pass can be seen."""
    modules = torch.autograd.graph, torch.autograd
    if not all(callable(getattr(module, "_engine_run_backward", None)) for module in modules):
        raise UsageError(
            f"torch {torch.__version__} does not have torch.autograd.graph._engine_run_backward, "
            "which halfguard hooks to observe every backward pass.",
            cure="Use torch 2.9 to 2.15, or call halfguard.find_first_nonfinite in the script.",
        )


def _leaves_of(outputs: list[Tensor]) -> list[Tensor]:
    """Return the tensors that a backward pass gives gradients to."""
    found = (getattr(node, "variable", None) for node in nodes_behind(outputs))
    return [variable for variable in found if isinstance(variable, Tensor)]


def _has_skipped(scaler: Any, optimizer: Any) -> bool:
    """Return whether an optimizer that looks at the scale itself (a fused one) left out its step."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    found = scaler._found_inf_per_device(optimizer)
    return any(bool(one) for one in found.values())


def _is_one_number(tensor: Tensor) -> bool:
    return tensor.numel() == 1 and tensor.is_floating_point() and not tensor.is_meta


def is_transformed() -> bool:
    """Return whether torch.compile or torch.func run the code, with tensors that hold no numbers."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return torch.compiler.is_compiling()
