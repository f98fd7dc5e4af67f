"""Observe one forward pass: the dtype of every matrix product, the autocast around it, the graph of its loss.

A configuration says what was requested; the operands of ``aten.mm`` show what runs. A dispatch mode sees
them below autocast, after every cast. A function mode runs above autocast and records what the dispatch
mode cannot see: whether autocast was on, and the operands of a call that raised.

Counting calls would give a head of a thousand multiplications the same weight as a backbone of a billion.
So every product is weighted by its FLOPs, which follow from the shapes of its operands.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.overrides import TorchFunctionMode

from halfguard.dist.sharded_dtypes import cast_outputs
from halfguard.precision.modes import HALF_DTYPES
from halfguard.step.loss import find_loss
from halfguard.step.nested import iter_leaves, tensors_in
from halfguard.tracing.call_arguments import OperationMode
from halfguard.tracing.operation_places import ModuleStack
from halfguard.tracing.products import product_flops
from halfguard.workload.user_error import is_out_of_memory, user_frame


@dataclass(frozen=True)
class CallContext:
    """The surroundings of a call: the module, and the state of autocast."""

    module: str | None = None  # "" in the model's own forward, None outside, as in a loss
    autocast: torch.dtype | None = None
    island: bool = False  # autocast was switched off inside an autocast region
    attention_dtype: torch.dtype | None = None  # 16-bit dtype requested of an attention call


@dataclass(frozen=True)
class Product:
    """One matrix product: the dtype of its operands, its FLOPs, and where it ran."""

    dtype: torch.dtype
    context: CallContext
    flops: float
    passes_gradient: bool  # in the backward pass

    @property
    def module(self) -> str | None:
        return self.context.module


def as_product(
    func: Any, args: Any, kwargs: Any, result: Any, context: CallContext
) -> Product | None:
    """Return a call in the dispatcher as a product, or None if it is not one."""
    flops = product_flops(func, args, kwargs, result)
    if flops is None:
        return None
    operands = list(tensors_in(args))
    floating = [tensor for tensor in operands if tensor.is_floating_point()]
    if torch.is_grad_enabled():
        passes = any(tensor.requires_grad for tensor in operands)
    else:
        passes = _inside_autograd_function()
    dtype = floating[0].dtype
    if dtype is torch.float32 and context.attention_dtype is not None:
        dtype = context.attention_dtype
    return Product(dtype, context, flops, passes)


def _inside_autograd_function() -> bool:
    """Return whether an ``autograd.Function`` is running, one of whose arguments needs a gradient.

    Such a function (a custom linear layer, a reentrant checkpoint) runs its ``forward`` with gradients off,
    but its ``backward`` computes them. ``apply`` has no Python frame in every version of torch, so the frame
    of ``forward`` is looked for. It shows arguments as they are now: a ``forward`` without ``ctx`` that has
    replaced each of them that needs a gradient is taken for one without gradients.
    """
    forwards = _forward_codes()
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code in forwards and any(map(_needs_gradient, _arguments(frame))):
            return True
        frame = frame.f_back
    return False


def _forward_codes() -> set[CodeType]:
    """Return the code of ``forward`` of every ``autograd.Function`` that exists now."""
    found, classes = set(), [torch.autograd.Function]
    while classes:
        subclasses = classes.pop().__subclasses__()
        classes += subclasses
        found |= {getattr(cls.forward, "__code__", None) for cls in subclasses}
    return {code for code in found if code is not None}


def _arguments(frame: FrameType) -> Iterator[object]:
    """Yield the positional arguments of a call."""
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount]:
        yield frame.f_locals.get(name)
    if code.co_flags & inspect.CO_VARARGS:
        yield from frame.f_locals.get(
            code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ()
        )


def _needs_gradient(argument: object) -> bool:
    if isinstance(argument, FunctionCtx):
        return any(getattr(argument, "needs_input_grad", ()))
    return isinstance(argument, Tensor) and argument.requires_grad


# Without a suitable 16-bit kernel these compute in FP32 inside, although inputs and outputs have 16 bits.
_ATTENTION = {
    nn.functional.scaled_dot_product_attention,
    nn.functional.multi_head_attention_forward,
}


@dataclass(frozen=True)
class Call:
    """A call of a torch function, before autocast."""

    operation: str = ""
    dtypes: tuple[torch.dtype, ...] = ()  # of the operands, each once
    context: CallContext = field(default_factory=CallContext)


@dataclass(frozen=True)
class ForwardError:
    """The error that the forward pass raised, and where."""

    message: str
    place: str  # the line of the user's code, or empty
    call: Call = field(default_factory=Call)  # the call that raised, if torch's
    out_of_memory: bool = False
    missing_attribute: bool = False


@dataclass(frozen=True)
class RoundedOutput:
    """A tensor that the model returned with more digits than FSDP2's ``output_dtype`` keeps."""

    name: str  # in the output; empty if it is the output
    dtype: torch.dtype
    is_scalar: bool


@dataclass
class ObservedForward:
    """The products, the result and the error of one forward pass."""

    products: list[Product] = field(default_factory=list)
    result: Any = None
    error: ForwardError | None = None
    rounded: dict[RoundedOutput, None] = field(default_factory=dict)  # in order


def observe_forward(model: nn.Module, step: Callable[[], Any], device_type: str) -> ObservedForward:
    """Run ``step``, which calls ``model``, and record its products; an error is recorded, not raised."""
    seen, stack = ObservedForward(), ModuleStack()
    before = _BeforeAutocast(device_type, stack)
    sensors = stack.tracking(model), _rounding_of_outputs(model, seen)
    with quiet(eager=True), sensors[0], sensors[1], before, _AfterAutocast(seen, before):
        try:
            with torch.inference_mode(False), torch.enable_grad():  # as in training
                seen.result = step()
        except Exception as error:  # noqa: BLE001  any error of the user's code is reported
            seen.error = ForwardError(
                message=(str(error) or type(error).__name__).splitlines()[0],
                place=user_frame(error),
                call=before.failed_call(error),
                out_of_memory=is_out_of_memory(error),
                missing_attribute=isinstance(error, AttributeError),
            )
        finally:
            before.failed = None  # an error keeps the frames alive, and with them this mode
    return seen


@contextmanager
def _rounding_of_outputs(model: nn.Module, seen: ObservedForward) -> Iterator[None]:
    """Record what FSDP2 rounds on its way out of the model; a cast that keeps all digits is none."""

    def look(dtype: torch.dtype, output: Any) -> None:
        for name, value in iter_leaves(output):
            if isinstance(value, Tensor) and value.is_floating_point():
                kept = value.detach().to(dtype).to(value.dtype)
                if bool(((kept != value) & ~value.isnan()).any()):
                    seen.rounded[RoundedOutput(name, dtype, value.dim() == 0)] = None

    with ExitStack() as stack:
        for module, dtype in cast_outputs(model).items():
            # Before FSDP2's own hook, which casts.
            hook = module.register_forward_hook(
                lambda *call, d=dtype: look(d, call[2]), prepend=True
            )
            stack.callback(hook.remove)
        yield


@contextmanager
def quiet(eager: bool) -> Iterator[None]:
    """Ignore warnings, since this run is not the user's; with ``eager``, do not run compiled code."""
    stance = torch.compiler.set_stance("force_eager") if eager else nullcontext()
    with warnings.catch_warnings(), stance:
        warnings.simplefilter("ignore")
        yield


class _BeforeAutocast(TorchFunctionMode):
    """Sees calls before autocast, and records errors."""

    def __init__(self, device_type: str, stack: ModuleStack) -> None:
        super().__init__()
        self._device_type, self._stack = device_type, stack
        self.autocast: torch.dtype | None = None
        self.island = False
        self.attention_dtype: torch.dtype | None = None
        self.failed: tuple[Exception, Call] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        on = torch.is_autocast_enabled(self._device_type)
        self.autocast = torch.get_autocast_dtype(self._device_type) if on else None
        self.island = not on and _autocast_depth() > 1
        self.attention_dtype = self._attention(args, kwargs) if func in _ATTENTION else None
        context = self.context
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            name = getattr(func, "__name__", str(func))
            self.failed = error, Call(name, _floating_dtypes((args, kwargs)), context)
            raise

    @property
    def context(self) -> CallContext:
        return CallContext(self._stack.current, self.autocast, self.island, self.attention_dtype)

    def failed_call(self, error: Exception) -> Call:
        """Return the call that raised this error; the user may have caught other errors before."""
        return self.failed[1] if self.failed is not None and self.failed[0] is error else Call()

    def _attention(self, args: Any, kwargs: Any) -> torch.dtype | None:
        given = self.autocast or next(iter(_floating_dtypes((args, kwargs))), None)
        return given if given in HALF_DTYPES else None


class _AfterAutocast(OperationMode):  # type: ignore[no-untyped-call]
    """Sees operations after autocast has cast their operands."""

    def __init__(self, seen: ObservedForward, before: _BeforeAutocast) -> None:
        super().__init__()
        self._seen, self._before = seen, before

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        found = as_product(func, args, kwargs, result, self._before.context)
        if found is not None:
            self._seen.products.append(found)
        return result


def _autocast_depth() -> int:
    """Return the number of enclosing autocast regions, on or off; torch returns it on exit only."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _floating_dtypes(values: Any) -> tuple[torch.dtype, ...]:
    """Return the floating-point dtypes of the tensors among the values, each once, in order."""
    tensors = tensors_in(values)
    return tuple(dict.fromkeys(t.dtype for t in tensors if t.is_floating_point()))


@dataclass(frozen=True)
class GraphLeaves:
    """The leaf tensors of a graph, as far as they can be found."""

    tensors: tuple[Tensor, ...] = ()
    complete: bool = (
        True  # False if a Python function, such as a reentrant checkpoint, may hide some
    )


def loss_in(result: Any) -> Tensor | None:
    """Return the loss in the result of a training step: the result, its first item or its "loss"."""
    loss = find_loss(result)
    if isinstance(loss, tuple | list) and loss:
        loss = loss[0]
    return loss if isinstance(loss, Tensor) else None


def find_graph_leaves(result: Any) -> GraphLeaves:
    """Find the leaves of the graph of the loss in the result of a forward pass."""
    loss = loss_in(result)
    if loss is None or loss.grad_fn is None:
        return GraphLeaves((loss,) if loss is not None and loss.requires_grad else ())
    nodes = list(_nodes(loss.grad_fn))
    ends = [getattr(node, "variable", None) for node in nodes]
    return GraphLeaves(
        tensors=tuple(end for end in ends if isinstance(end, Tensor)),
        complete=not any(isinstance(node, BackwardCFunction) for node in nodes),
    )


def _nodes(start: Any) -> Iterator[Any]:
    seen, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        yield node
        behind = {function for function, _ in node.next_functions if function is not None} - seen
        seen |= behind
        waiting.extend(behind)
